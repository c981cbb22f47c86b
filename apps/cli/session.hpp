// From flags to a loaded model and a prompt.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"
#include "stet/engine.hpp"

namespace stet::cli {

/// The model of `flags`, or the bundled one: beside the installed program, else in the source tree it was built from.
std::string model_of(const ModelFlags& flags);

/// Loads the model, with progress on a terminal; Code::interrupted on Ctrl-C.
Result<Engine> load_engine(const ModelFlags& flags);

/// Where a prompt comes from: the first of these that is given, else stdin unless that is a terminal.
struct PromptFlags {
  bool has_text = false, has_file = false;
  std::string text, file;
  std::vector<TokenId> ids;
  bool special = false;  // special tokens spelled in the text are themselves
};
void add_prompt_flags(CLI::App& app, PromptFlags& flags, const std::string& positional);

/// Reads a file or stdin into `text`; nothing for ids. An empty text is a legal prompt.
Result<void> read_prompt(PromptFlags& flags);

/// The ids of the prompt. Empty text is the model's start token; Code::invalid_argument if it has none,
/// Code::unsupported for text where there is no tokenizer.
Result<std::vector<TokenId>> prompt_ids(const Engine& engine, const PromptFlags& flags);

}  // namespace stet::cli
