#include "session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "console.hpp"
#include "files.hpp"
#include "interrupt.hpp"

namespace stet::cli {

namespace {

// Below the current folder a path is shorter from there.
std::string as_seen_from_here(const std::filesystem::path& path) {
  std::error_code error;
  const auto here = std::filesystem::current_path(error);
  if (error) return path.string();
  const auto relative = path.lexically_relative(here);
  return relative.empty() || *relative.begin() == ".." ? path.string() : relative.string();
}

}  // namespace

std::string model_of(const ModelFlags& flags) {
  if (!flags.model.empty()) return flags.model;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const auto installed = program.parent_path().parent_path() / "share/stet/models/shakespeare-char";
    if (std::filesystem::is_directory(installed, error)) return as_seen_from_here(installed);
  }
  return as_seen_from_here(STET_BUNDLED_MODEL);
}

Result<Engine> load_engine(const ModelFlags& flags) {
  const std::string model = model_of(flags);
  Progress progress(fmt::format("loading {}", model));
  return Engine::load(model, flags.engine, [&progress](double fraction) {
    progress.show(fraction);
    return !interrupted();
  });
}

void add_prompt_flags(CLI::App& app, PromptFlags& flags, const std::string& positional) {
  auto* text = add_text(
      app, positional,
      [&flags](std::string value) {
        flags.text = std::move(value);
        flags.has_text = true;
      },
      "The prompt; without it stdin is read, if that is not a terminal. Write -- before one that begins with -");
  auto* file = add_text(
      app, "--file",
      [&flags](std::string value) {
        flags.file = std::move(value);
        flags.has_file = true;
      },
      "Read the prompt from a file, byte for byte; - is stdin");
  file->type_name("FILE");
  auto* ids = add_ids(app, "--ids", flags.ids, "The prompt as token ids: 1,2,3");
  app.add_flag("--special", flags.special,
               "Special tokens spelled in the prompt (<|endoftext|>) are themselves, not text");
  text->excludes(file)->excludes(ids);
  file->excludes(ids);
}

Result<void> read_prompt(PromptFlags& flags) {
  if (flags.has_text || !flags.ids.empty()) return {};
  if (!flags.has_file && ::isatty(STDIN_FILENO) != 0) return {};
  auto text = read_input(flags.has_file ? flags.file : "-");
  if (!text) return pass(text);
  flags.text = std::move(*text);
  return {};
}

Result<std::vector<TokenId>> prompt_ids(const Engine& engine, const PromptFlags& flags) {
  if (!flags.ids.empty()) return flags.ids;
  if (flags.text.empty()) {
    if (const auto start = engine.info().bos) return std::vector<TokenId>{*start};
    return fail(Code::invalid_argument,
                fmt::format("the prompt is empty, and {} has no start token to begin with", engine.info().name));
  }
  if (engine.tokenizer() == nullptr) {
    const std::string& why = engine.no_tokenizer();
    return fail(Code::unsupported, fmt::format("{} has no tokenizer to read text with{}: give token ids (--ids)",
                                               engine.info().name, why.empty() ? "" : fmt::format(" ({})", why)));
  }
  return engine.tokenizer()->encode(flags.text, flags.special);
}

}  // namespace stet::cli
