#include "completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace stet::cli {
namespace {

/// Nothing where there was nothing to measure.
std::optional<double> prefill_rate(const Engine& engine, const Request& request, const Completion& completion) {
  if (completion.prefill_seconds <= 0) return std::nullopt;
  const Pos read = std::min(static_cast<Pos>(request.prompt.size()), engine.options().max_len);
  return static_cast<double>(read - completion.cached_tokens) / completion.prefill_seconds;
}

/// Time per output token, over the steps after the first new token.
std::optional<double> ms_per_token(const Completion& completion) {
  if (completion.ids.size() < 2) return std::nullopt;
  return 1e3 * completion.decode_seconds / static_cast<double>(completion.ids.size() - 1);
}

Json number_or_null(std::optional<double> number) {
  return number ? Json(*number) : Json(nullptr);
}

std::string cache_words(const Engine& engine) {
  if (engine.options().cache == CacheMode::none) return "no cache";
  const CacheUsage usage = engine.cache_usage();
  std::string words = fmt::format("cache {} of {} bytes used", usage.used, usage.reserved);
  if (engine.options().cache == CacheMode::growing) words += fmt::format(", {} copied", usage.copied);
  return words;
}

}  // namespace

Json completion_json(const Engine& engine, const Request& request, const Completion& completion) {
  const CacheUsage usage = engine.cache_usage();
  Json json;
  json["schema"] = kSchema;
  json["model"] = engine.info().name;
  json["dtype"] = name_of(engine.options().dtype);
  set_text(json, completion.text);
  json["ids"] = completion.ids;
  json["reason"] = name_of(completion.reason);
  if (engine.options().prefix_bytes) {
    json["cached_tokens"] = completion.cached_tokens;
    json["miss"] = completion.miss.empty() ? Json(nullptr) : Json(completion.miss);
  }
  if (!completion.error.empty()) json["error"] = completion.error;
  if (completion.preempted > 0) json["preempted"] = completion.preempted;
  json["prompt_tokens"] = request.prompt.size();
  json["new_tokens"] = completion.ids.size();
  if (request.past_limit != PastLimit::stop) json["past_limit"] = completion.past_limit;
  json["seed"] = request.sampling.seed;
  json["sequence"] = request.sequence;
  json["timings"] = {{"prefill_seconds", completion.prefill_seconds},
                     {"decode_seconds", completion.decode_seconds},
                     {"prefill_tokens_per_second", number_or_null(prefill_rate(engine, request, completion))},
                     {"ms_per_token", number_or_null(ms_per_token(completion))}};
  json["cache"] = {{"mode", name_of(engine.options().cache)},
                   {"codecs", engine.info().cache_codecs},
                   {"bytes_per_token", engine.info().cache_bytes_per_token},
                   {"used_bytes", usage.used},
                   {"reserved_bytes", usage.reserved}};
  return json;
}

std::string summary(const Engine& engine, const Request& request, const Completion& completion) {
  const auto rate = prefill_rate(engine, request, completion);
  const auto pace = ms_per_token(completion);
  std::string line = fmt::format("{} prompt + {} new tokens", request.prompt.size(), completion.ids.size());
  if (engine.options().prefix_bytes && (completion.cached_tokens > 0 || completion.miss != "never_seen")) {
    line += fmt::format("; {} prompt tokens found{}{}", completion.cached_tokens,
                        completion.miss.empty() ? "" : ", more not: ", completion.miss);
  }
  if (completion.past_limit > 0) {
    line += fmt::format("; {} of them past the limit, each from the last {} tokens computed anew",
                        completion.past_limit, engine.options().max_len);
  }
  if (rate) line += fmt::format("; prefill {:.0f} tok/s", *rate);
  if (pace) line += fmt::format("; {:.2f} ms per token", *pace);
  line += fmt::format("; {}; stopped: {}", cache_words(engine), name_of(completion.reason));
  if (completion.reason == StopReason::context) line += fmt::format(" of {} tokens is full", engine.options().max_len);
  return line;
}

std::string summary(const Engine& engine, std::span<const Request> requests, std::span<const Completion> completions,
                    double seconds) {
  std::size_t read = 0, made = 0;
  for (const auto& request : requests) read += request.prompt.size();
  for (const auto& completion : completions) made += completion.ids.size();
  std::string line = fmt::format("{} requests; {} prompt + {} new tokens", requests.size(), read, made);
  if (seconds > 0) line += fmt::format("; {:.0f} tok/s together", static_cast<double>(read + made) / seconds);
  return line + fmt::format("; {}", cache_words(engine));
}

}  // namespace stet::cli
