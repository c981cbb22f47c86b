// The memory that a model and its cache will take, for people and for programs.
#pragma once

#include <string>

#include "json.hpp"
#include "stet/engine.hpp"

namespace stet::cli {

std::string bytes_words(std::size_t bytes);  // "123456789 bytes (117.7 MiB)"

std::size_t peak_bytes(const ModelInfo& info);

/// Rows of `label value`, the last ending with a line feed.
std::string plan_text(const ModelInfo& info, const EngineOptions& options);
Json plan_json(const ModelInfo& info, const EngineOptions& options);

}  // namespace stet::cli
