// What `stet generate` was asked to do; shared by its two ways, one prompt and a file of prompts.
#pragma once

#include <string>

#include "session.hpp"
#include "stet/engine.hpp"

namespace stet::cli {

struct GenerateFlags {
  ModelFlags model;
  PromptFlags prompt;
  Request request;      // everything but the prompt
  std::string prompts;  // file of --prompts, if any
  int batch = 8;
  std::size_t prefix_bytes = 0;  // 0: no prefix cache
  bool json = false, echo = false;
  bool dry_run = false, cache_map = false, reencode = false;
  std::string save_kv, load_kv;  // files; empty: none
};

/// Prints the plan instead of running; the exit code.
int dry_run(const GenerateFlags& flags);

/// The engine of these flags, with what --load-kv brings.
Result<Engine> load_for(const GenerateFlags& flags);

/// One line on stderr if --kv makes the model predict other tokens than its own; looks at the prompt.
Result<void> warn_of_codecs(const Engine& engine, const Request& request);

/// After the completions are out: --save-kv, --cache-map on stderr, and what an audit found. The exit code, `code`
/// if all went well.
int end_run(Engine& engine, const GenerateFlags& flags, int code);

/// Both return the exit code.
int generate_one(GenerateFlags flags);
int generate_prompts(const GenerateFlags& given);

}  // namespace stet::cli
