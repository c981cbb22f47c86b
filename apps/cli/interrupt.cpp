#include "interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace stet::cli {
namespace {

// A signal handler cannot be given anything: the one place where the program keeps state outside its objects.
std::atomic<bool> asked{false}, noticed{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// A Ctrl-C that comes after the program asked for it and before it waits in a system call would not end that call. So
// an alarm ends the calls that follow, once a second, until the program has noticed.
constexpr unsigned kSeconds = 1;

extern "C" void on_alarm(int /*signal*/) {
  if (!noticed) ::alarm(kSeconds);
}

extern "C" void on_interrupt(int /*signal*/) {
  ::alarm(kSeconds);
  asked = true;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  if (::sigaction(SIGINT, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = on_alarm;
  ::sigaction(SIGALRM, &action, nullptr);
  action = {};
  action.sa_handler = on_interrupt;
  // Without SA_RESTART, so that waiting for stdin ends; the second Ctrl-C meets the default action.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
}

bool interrupted() noexcept {
  if (!asked) return false;
  if (!noticed.exchange(true)) ::alarm(0);
  return true;
}

}  // namespace stet::cli
