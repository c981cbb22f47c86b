#include "weights/config_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "weights/json.hpp"
#include "weights/printable.hpp"

namespace stet::weights {
namespace {

using nlohmann::json;

constexpr int kMost = std::numeric_limits<int>::max();

}  // namespace

bool is_text(const json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

void ConfigReader::refuse(Code code, std::string_view why) {
  if (!error_) error_ = Error{code, fmt::format("{}: {}", where_, why)};
}

void ConfigReader::wrong(const char* key, const json& value, std::string_view expected) {
  refuse(Code::corrupt, fmt::format("{} is {}, not {}", key, spelled(value), expected));
}

const json* ConfigReader::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() ? nullptr : &*at;
}

const json* ConfigReader::given(const char* key) const {
  const json* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

int ConfigReader::size(const char* key) {
  const json* value = find(key);
  if (value == nullptr) {
    refuse(Code::corrupt, fmt::format("{} is missing", key));
    return 1;
  }
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 || value->get<std::uint64_t>() > kMost) {
    wrong(key, *value, "an integer from 1 to 2147483647");
    return 1;
  }
  return value->get<int>();
}

int ConfigReader::size(const char* key, int missing) {
  return find(key) == nullptr ? missing : size(key);
}

bool ConfigReader::flag(const char* key, bool missing) {
  const json* value = find(key);
  if (value == nullptr) return missing;
  if (!value->is_boolean()) {
    wrong(key, *value, "true or false");
    return missing;
  }
  return value->get<bool>();
}

double ConfigReader::positive(const char* key, double missing) {
  const json* value = find(key);
  if (value == nullptr) return missing;
  if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
    wrong(key, *value, "a positive number");
    return missing;
  }
  return value->get<double>();
}

double ConfigReader::at_least(const char* key, double least) {
  const json* value = find(key);
  if (value == nullptr) {
    refuse(Code::corrupt, fmt::format("{} is missing", key));
    return least;
  }
  if (!value->is_number() || !(value->get<double>() >= least) || !std::isfinite(value->get<double>())) {
    wrong(key, *value, fmt::format("a number from {}", least));
    return least;
  }
  return value->get<double>();
}

std::string ConfigReader::text(const char* key, std::string missing) {
  const json* value = find(key);
  if (value == nullptr) return missing;
  if (!value->is_string()) {
    wrong(key, *value, "a string");
    return missing;
  }
  return value->get<std::string>();
}

Activation ConfigReader::activation(const char* key, const char* missing, std::initializer_list<Activation> known) {
  const std::string name = text(key, missing);
  const auto found = activation_named(name);
  if (found && std::find(known.begin(), known.end(), *found) != known.end()) return *found;
  std::string names;
  for (const char* other : {"gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu", "swish"}) {
    if (std::find(known.begin(), known.end(), *activation_named(other)) != known.end()) {
      names += (names.empty() ? "" : ", ") + std::string(other);
    }
  }
  refuse(Code::unsupported, fmt::format("{} \"{}\" is not supported; {} are", key, printable(name), names));
  return *known.begin();
}

std::optional<TokenId> ConfigReader::token(const char* key, int vocab, std::optional<TokenId> missing) {
  const json* value = find(key);
  if (value == nullptr) return missing;
  if (value->is_null()) return std::nullopt;
  if (value->is_array()) {
    if (value->size() != 1) {
      refuse(Code::unsupported, fmt::format("{} is a list of {} ids; one is supported", key, value->size()));
      return std::nullopt;
    }
    value = &value->front();
  }
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab)) {
    wrong(key, *value, fmt::format("null or an id of the vocabulary of {}", vocab));
    return std::nullopt;
  }
  return value->get<TokenId>();
}

void ConfigReader::must_be_off(const char* key) {
  const json* value = given(key);
  if (value == nullptr || *value == false) return;
  if (value->is_structured() && value->empty()) return;
  refuse(Code::unsupported, fmt::format("{} {} is not supported", key, spelled(*value)));
}

void ConfigReader::must_be_one(const char* key) {
  const json* value = given(key);
  if (value == nullptr || (value->is_number() && value->get<double>() == 1)) return;
  refuse(Code::unsupported, fmt::format("{} {} is not supported; 1 is", key, spelled(*value)));
}

ConfigReader ConfigReader::within(const char* key, const json& object) const {
  return {object, fmt::format("{}: {}", where_, key)};
}

void ConfigReader::adopt(const ConfigReader& inner) {
  if (!error_) error_ = inner.error_;
}

}  // namespace stet::weights
