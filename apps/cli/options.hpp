// Flags that several commands share, and strict reading of numbers: whole text, no silent overflow, no octal.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/engine.hpp"

namespace stet::cli {

/// Reads all of `text` as a number; false if it is not one or does not fit T.
template <class T>
bool parse_number(std::string_view text, T& value) noexcept {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc{} && result.ptr == text.data() + text.size();
}

/// `file`, or a usage error of `flag` when it is empty.
std::string file_named(const char* flag, std::string file);

/// A flag or argument that takes one string, empty and odd ones included. (CLI11's own conversions read "{}" and "010"
/// otherwise than a user means them.)
CLI::Option* add_text(CLI::App& app, const std::string& name, std::function<void(std::string)> set,
                      const std::string& help);

/// A flag that takes a list with commas between: calls clear() and then add(item) for each; a usage error that says
/// "must be WORDS" if it refuses one. Given twice, the last list counts.
CLI::Option* add_list(CLI::App& app, const std::string& name, const std::string& words, const std::string& help,
                      const std::function<void()>& clear, const std::function<bool(std::string_view)>& add);

/// Which numbers a flag takes; `words` says so in the error: "--top-p: must be WORDS, not '2'".
template <class T>
struct Rule {
  std::string words;
  std::function<bool(T)> fits;
};
template <class T>
Rule<T> from_to(T low, T high);  // for int and std::int64_t
Rule<double> number_from(double low);

/// A flag that takes a number; a usage error if the rule refuses it.
template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& name, T& target, Rule<T> rule, const std::string& help) {
  auto set = [&target, rule = std::move(rule), label = name.substr(name.rfind(',') + 1)](const std::string& text) {
    T value{};
    if (!parse_number(text, value) || !rule.fits(value)) {
      throw CLI::ValidationError(label, "must be " + rule.words + ", not '" + text + "'");
    }
    target = value;
  };
  return add_text(app, name, std::move(set), help)->type_name("N");
}

/// -m, --dtype, what the cache is (--cache, --page, --pool, --kv, --window), and where a model runs --chunk, --threads,
/// --pin and --poison.
struct ModelFlags {
  std::string model;  // empty: the bundled one
  EngineOptions engine;
};
void add_model_flag(CLI::App& app, ModelFlags& flags);
void add_dtype_flag(CLI::App& app, ModelFlags& flags);
void add_cache_flags(CLI::App& app, ModelFlags& flags);
void add_layout_flags(CLI::App& app, EngineOptions& engine);  // those of add_cache_flags but --kv
void add_page_flags(CLI::App& app, EngineOptions& engine);    // those of add_layout_flags but --cache
/// --context and --batch.
void add_size_flags(CLI::App& app, ModelFlags& flags);
void add_engine_flags(CLI::App& app, ModelFlags& flags);

/// "int8", "int8,int4", "3:f32", "0-1:f32,bf16"; throws a usage error of --kv.
KvCodecs parse_kv(std::string_view text);

/// --past-limit.
void add_past_limit_flag(CLI::App& app, Request& request);

void add_sampling_flags(CLI::App& app, SamplingParams& sampling);

/// Ids separated by commas, spaces or line feeds, in brackets or not. Code::invalid_argument names what is not an id.
Result<std::vector<TokenId>> parse_ids(std::string_view text);

/// A flag that takes ids.
CLI::Option* add_ids(CLI::App& app, const std::string& name, std::vector<TokenId>& target, const std::string& help);

}  // namespace stet::cli
