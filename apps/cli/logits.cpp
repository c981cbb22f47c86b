#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "commands.hpp"
#include "console.hpp"
#include "files.hpp"
#include "interrupt.hpp"
#include "npy.hpp"
#include "session.hpp"

namespace stet::cli {
namespace {

struct LogitsFlags {
  ModelFlags model;
  PromptFlags prompt;
  std::string file = "-";
};

Result<std::string> run_logits(LogitsFlags& flags) {
  catch_interrupts();
  if (auto ok = check_writable(flags.file); !ok) return pass(ok);
  if (auto ok = read_prompt(flags.prompt); !ok) return pass(ok);
  auto engine = load_engine(flags.model);
  if (!engine) return pass(engine);
  const auto ids = prompt_ids(*engine, flags.prompt);
  if (!ids) return pass(ids);
  const auto logits = engine->logits(*ids, [] { return !interrupted(); });
  if (!logits) return pass(logits);
  const std::string_view values(reinterpret_cast<const char*>(logits->data.data()), logits->data.size());
  if (auto ok = write_file(flags.file, {npy_header(*logits), values}); !ok) return pass(ok);
  return fmt::format("{} x {} logits in {} to {}", logits->rows, logits->vocab, name_of(logits->type),
                     flags.file == "-" ? "stdout" : flags.file);
}

}  // namespace

void add_logits(CLI::App& app, Run& run) {
  auto flags = std::make_shared<LogitsFlags>();
  auto* sub = app.add_subcommand("logits", "The logits of every position, as a NumPy array");
  sub->footer(
      "Examples:\n"
      "  stet logits -m gpt2/ --ids 464,3290 --dtype f64 -o logits.npy\n"
      "  stet logits \"ROMEO:\" | python3 -c 'import numpy, sys, io; "
      "print(numpy.load(io.BytesIO(sys.stdin.buffer.read())))'\n\n"
      "The array has one row a token and one column a vocabulary entry, '<f4' or '<f8'.");
  add_prompt_flags(*sub, flags->prompt, "TEXT");
  add_model_flag(*sub, flags->model);
  add_engine_flags(*sub, flags->model);
  add_text(
      *sub, "-o,--output",
      [flags](std::string file) {
        if (file.empty()) throw CLI::ValidationError("-o", "must name a file, not ''");
        flags->file = file == "/dev/stdout" ? "-" : std::move(file);
      },
      "Where the .npy file goes; it appears complete or not at all; - is stdout (default: -)")
      ->type_name("FILE");
  sub->callback([flags, &run] {
    if (flags->file == "-" && ::isatty(STDOUT_FILENO) != 0) {
      throw CLI::ValidationError("-o", "must name a file: an array is nothing for a terminal");
    }
    run = [flags] {
      const auto done = run_logits(*flags);
      if (!done) return report(done.error());
      if (flags->file != "-") say(*done);
      return kOk;
    };
  });
}

}  // namespace stet::cli
