// How a completion is told: as JSON and as the summary line.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "json.hpp"
#include "stet/engine.hpp"

namespace stet::cli {

/// What docs/json.md calls a completion.
Json completion_json(const Engine& engine, const Request& request, const Completion& completion);

/// "6 prompt + 100 new tokens; prefill 812 tok/s; 1.24 ms per token; cache 421888 of 524288 bytes used; stopped:
/// length"
std::string summary(const Engine& engine, const Request& request, const Completion& completion);

/// The same for requests that ran together for `seconds`.
std::string summary(const Engine& engine, std::span<const Request> requests, std::span<const Completion> completions,
                    double seconds);

}  // namespace stet::cli
