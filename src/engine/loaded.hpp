// From what a user calls a model ("models/gpt2", "random:char,ctx=16384") to a model in memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "model/model.hpp"
#include "stet/engine.hpp"
#include "stet/tokenizer.hpp"
#include "weights/source.hpp"

namespace stet::engine {

struct Loaded {
  std::string name;
  std::unique_ptr<model::Model> model;
  std::optional<Tokenizer> tokenizer;  // none: the folder has no vocabulary files, or
  std::string no_tokenizer;            // the reason why those of a Llama cannot be used: it then runs with ids
};

/// Errors name the file, tensor or key. Nothing is kept after an error.
Result<Loaded> load(const std::string& spec, DType dtype, const std::function<bool(double)>& progress = {});

/// The config alone; no weight is read.
Result<ModelConfig> config_of(const std::string& spec);

/// Whether load() would look for a tokenizer: a folder without any vocabulary file is a model for ids only.
bool has_vocabulary(const std::string& spec);

struct Memory {
  std::size_t weights = 0, cache = 0, scratch = 0;
};

/// Code::capacity, need and available named, when this process may not use so much. Asked before anything is allocated:
/// a system that promises more than it has would end the process later. load() asks for the weights alone.
Result<void> check_memory(const std::string& model, const Memory& need);

/// A request that no sequence of `max_len` tokens can serve, by name.
Result<void> check_request(const Request& request, const ModelConfig& config, Pos max_len, bool has_tokenizer);

}  // namespace stet::engine
