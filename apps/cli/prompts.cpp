#include "prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace stet::cli {
namespace {

/// Whether the value was of the right kind and fits; it is then in `target`.
bool take(const Json& value, double& target) {
  if (!value.is_number()) return false;
  target = value.get<double>();
  return true;
}

bool take(const Json& value, int& target) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<int>::max()) return false;
  const auto number = value.get<std::int64_t>();
  if (number < 0) return false;
  target = static_cast<int>(number);
  return true;
}

bool take(const Json& value, std::uint64_t& target) {
  if (!value.is_number_unsigned()) return false;
  target = value.get<std::uint64_t>();
  return true;
}

bool take(const Json& value, bool& target) {
  if (!value.is_boolean()) return false;
  target = value.get<bool>();
  return true;
}

bool take(const Json& value, std::string& target) {
  if (!value.is_string()) return false;
  target = value.get<std::string>();
  return true;
}

template <class T>
bool take(const Json& value, std::vector<T>& target) {
  if (!value.is_array()) return false;
  target.clear();
  for (const auto& element : value) {
    T item{};
    if (!take(element, item)) return false;
    target.push_back(std::move(item));
  }
  return true;
}

/// Sets what the field is about. False: of the wrong kind; nothing: no such field.
std::optional<bool> take_field(const std::string& key, const Json& value, PromptLine& line) {
  Request& request = line.request;
  SamplingParams& sampling = request.sampling;
  if (key == "prompt") return take(value, line.text.emplace());
  if (key == "ids") return take(value, request.prompt) && !request.prompt.empty();
  if (key == "n") return take(value, request.max_new);
  if (key == "temperature") return take(value, sampling.temperature);
  if (key == "top_k") return take(value, sampling.top_k);
  if (key == "top_p") return take(value, sampling.top_p);
  if (key == "min_p") return take(value, sampling.min_p);
  if (key == "repetition_penalty") return take(value, sampling.repetition_penalty);
  if (key == "seed") return take(value, sampling.seed);
  if (key == "sequence") return take(value, request.sequence);
  if (key == "salt") return take(value, request.salt);
  if (key == "ignore_eos") return take(value, request.ignore_eos);
  if (key == "stop") return take(value, request.stop) && std::ranges::find(request.stop, "") == request.stop.end();
  if (key == "id") {
    line.id = value;
    return value.is_string() || value.is_number();
  }
  return std::nullopt;
}

Result<PromptLine> read_line(std::string_view text, PromptLine line) {
  auto json = parse_json(text, line.where);
  if (!json) return pass(json);
  const auto refuse = [&line](std::string_view reason) {
    return fail(Code::corrupt, fmt::format("{}: {}", line.where, reason));
  };
  if (!json->is_object()) return refuse("not a JSON object");
  for (const auto& [key, value] : json->items()) {
    const auto taken = take_field(key, value, line);
    if (!taken) return refuse(fmt::format("unknown field \"{}\"", key));
    if (!*taken) return refuse(fmt::format("\"{}\" cannot be {}", key, dump(value).substr(0, 60)));
  }
  if (line.text.has_value() == !line.request.prompt.empty()) return refuse("needs either \"prompt\" or \"ids\"");
  return line;
}

}  // namespace

Result<std::vector<PromptLine>> read_prompts(std::string_view content, const std::string& name,
                                             const Request& defaults) {
  std::vector<PromptLine> lines;
  for (std::size_t number = 1; !content.empty(); ++number) {
    const auto end = content.find('\n');
    const auto text = content.substr(0, end);
    content.remove_prefix(end == content.npos ? content.size() : end + 1);
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    PromptLine start{fmt::format("{}:{}", name, number), std::nullopt, defaults, Json()};
    start.request.sequence = lines.size();
    auto line = read_line(text, std::move(start));
    if (!line) return pass(line);
    lines.push_back(std::move(*line));
  }
  if (lines.empty()) return fail(Code::corrupt, fmt::format("{}: holds no request", name));
  return lines;
}

}  // namespace stet::cli
