// The program: finds the command, runs it, and turns what became of it into an exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <string>

#include "commands.hpp"
#include "console.hpp"
#include "json.hpp"
#include "stet/version.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet generate \"ROMEO:\" -n 120 --temperature 0.8\n"
    "  stet verify --tokens 32\n"
    "  stet COMMAND --help\n\n"
    "Exit codes: 0 ok, 1 failure, 2 usage, 130 interrupted.";

/// A standard descriptor that the caller closed would be given to the next file opened, and results would go into it.
/// stdout is filled with something that refuses to be written, so that the loss of results is an error.
void fill_standard_descriptors() {
  for (const auto& [fd, mode] :
       {std::pair{STDIN_FILENO, O_RDONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_WRONLY}}) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", mode);  // NOLINT(*-vararg)
  }
}

int print_version(bool json) {
  const Version v = version();
  if (!json) {
    return print_line(fmt::format("stet {} ({}, {}, numerics {})", v.version, v.compiler, v.target, v.numerics), kOk);
  }
  Json object;
  object["schema"] = kSchema;
  object["version"] = v.version;
  object["compiler"] = v.compiler;
  object["target"] = v.target;
  object["numerics"] = v.numerics;
  return print_line(dump(object), kOk);
}

/// The parser's message as one line that ends with where to read on.
int usage_error(const CLI::App& app, std::string message) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  const auto subs = app.get_subcommands();
  say(fmt::format("{} (see stet {}--help)", message, subs.empty() ? "" : subs.front()->get_name() + ' '));
  return kUsage;
}

int run_program(int argc, char** argv) {
  CLI::App app("Stet: language model inference whose KV cache is exact to the last bit", "stet");
  app.footer(kExample);
  app.require_subcommand(0, 1);
  bool show_version = false, json = false;
  auto* version_flag = app.add_flag("--version", show_version, "Version, compiler, instruction set, numerics version");
  app.add_flag("--json", json, "With --version: as one JSON object")->needs(version_flag);
  Run run(std::vector<std::string>(argv, argv + argc));
  for (const auto add : {add_generate, add_info, add_plan, add_cache, add_tokenize, add_logits, add_verify, add_eval,
                         add_bench, add_race, add_break, add_limit})
    add(app, run);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::string help = app.help();
    while (help.ends_with('\n')) help.pop_back();
    return print_line(std::move(help), kOk);
  } catch (const CLI::ParseError& e) {
    return usage_error(app, e.what());
  }
  if (show_version) {
    return run ? usage_error(app, "--version does not go with a command") : print_version(json);
  }
  return run ? run()
             : usage_error(app,
                           "a command is needed: generate, info, plan, cache, tokenize, logits, verify, eval, bench, "
                           "race, break or limit");
}

}  // namespace
}  // namespace stet::cli

int main(int argc, char** argv) {
  using namespace stet::cli;
  fill_standard_descriptors();
  ::signal(SIGPIPE, SIG_IGN);  // a reader that went away is told by write()
  ::signal(SIGXFSZ, SIG_IGN);  // so is a file size limit
  try {
    return run_program(argc, argv);
  } catch (const std::bad_alloc&) {
    say("out of memory");
  } catch (const std::exception& e) {  // libraries may still throw what nobody expected
    say(e.what());
  }
  return kFailure;
}
