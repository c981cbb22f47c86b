#include "interrupt.hpp"

#include <signal.h>

#include <atomic>

namespace stet::cli {
namespace {

// A signal handler cannot be given anything: the one place where the program keeps state outside its objects.
std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_interrupt(int /*signal*/) {
  asked = true;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  if (::sigaction(SIGINT, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = on_interrupt;
  // Without SA_RESTART, so that waiting for stdin ends; the second Ctrl-C meets the default action.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
}

bool interrupted() noexcept {
  return asked;
}

}  // namespace stet::cli
