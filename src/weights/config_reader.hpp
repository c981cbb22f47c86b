// Values out of a config.json by key, and what the parsers of the families share.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/config.hpp"
#include "stet/result.hpp"

namespace stet::weights {

/// The most layers that check_config lets pass; lists of something per layer are made below it alone.
inline constexpr int kMaxLayers = 1 << 16;

/// True for the string `text`. (json's own comparison with one builds a value first.)
bool is_text(const nlohmann::json& value, std::string_view text);

/// Takes values out of a config by key. The first thing wrong is kept in error(); what comes back after it is a
/// default. `object` has to outlive the reader.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::optional<Error>& error() const noexcept { return error_; }
  void refuse(Code code, std::string_view why);
  /// "KEY is VALUE, not EXPECTED".
  void wrong(const char* key, const nlohmann::json& value, std::string_view expected);

  /// Null when the key is missing; and, with `given`, when its value is null.
  const nlohmann::json* find(const char* key) const;
  const nlohmann::json* given(const char* key) const;

  /// An integer from 1 to 2^31 - 1 that has to be there, or whose absence means `missing`.
  int size(const char* key);
  int size(const char* key, int missing);
  bool flag(const char* key, bool missing);
  double positive(const char* key, double missing);
  /// A finite number from `least`, which has to be there.
  double at_least(const char* key, double least);
  std::string text(const char* key, std::string missing);
  /// An activation's name, of those in `known`.
  Activation activation(const char* key, const char* missing, std::initializer_list<Activation> known);
  /// A token's id, or a list of one.
  std::optional<TokenId> token(const char* key, int vocab, std::optional<TokenId> missing);

  /// Refuses a key that changes the model unless it is missing, null, false or empty.
  void must_be_off(const char* key);
  /// Refuses a key that changes the model unless it is missing, null or 1.
  void must_be_one(const char* key);

  /// An object within, under `key`; its errors begin with the key, and adopt() makes them this one's.
  ConfigReader within(const char* key, const nlohmann::json& object) const;
  void adopt(const ConfigReader& inner);

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::optional<Error> error_;
};

/// The rest of a config.json whose family, one of Llama's, is known. check_config is the caller's.
void parse_llama(ConfigReader& reader, ModelConfig& config);

/// check_config's part for Llama's families, after the sizes that all families have. Returns what is wrong, or "".
std::string llama_fault(const ModelConfig& config);

}  // namespace stet::weights
