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
  bool json = false, echo = false;
};

/// Both return the exit code.
int generate_one(GenerateFlags flags);
int generate_prompts(const GenerateFlags& flags);

}  // namespace stet::cli
