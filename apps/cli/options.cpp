#include "options.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <map>
#include <utility>

namespace stet::cli {
namespace {

/// A flag that takes one of a few words.
template <class T>
void add_choice(CLI::App& app, const std::string& name, T& target,
                const std::vector<std::pair<std::string, T>>& choices, const std::string& help) {
  std::string words;
  for (const auto& choice : choices) words += (words.empty() ? "" : "|") + choice.first;
  auto set = [&target, choices, words, name](const std::string& text) {
    for (const auto& [word, value] : choices) {
      if (word == text) {
        target = value;
        return;
      }
    }
    throw CLI::ValidationError(name, "must be " + words + ", not '" + text + "'");
  };
  add_text(app, name, std::move(set), help)->type_name(words);
}

}  // namespace

std::string file_named(const char* flag, std::string file) {
  if (file.empty()) throw CLI::ValidationError(flag, "must name a file, not ''");
  return file;
}

CLI::Option* add_text(CLI::App& app, const std::string& name, std::function<void(std::string)> set,
                      const std::string& help) {
  CLI::callback_t callback = [set = std::move(set)](const CLI::results_t& results) {
    for (const auto& text : results) set(text);
    return true;
  };
  return app.add_option(name, callback, help)->type_name("TEXT");
}

template <class T>
Rule<T> from_to(T low, T high) {
  const auto words = high == std::numeric_limits<T>::max()
                         ? fmt::format("a whole number from {} that fits {} bits", low, sizeof(T) * 8)
                         : fmt::format("a whole number from {} to {}", low, high);
  return {words, [low, high](T value) { return value >= low && value <= high; }};
}
template Rule<int> from_to(int, int);
template Rule<std::int64_t> from_to(std::int64_t, std::int64_t);

Rule<double> number_from(double low) {
  return {fmt::format("a finite number from {}", low),
          [low](double value) { return value >= low && value <= std::numeric_limits<double>::max(); }};
}

void add_model_flag(CLI::App& app, ModelFlags& flags) {
  auto set = [&flags](std::string text) {
    if (text.empty()) throw CLI::ValidationError("-m", "must name a model, not ''");
    flags.model = std::move(text);
  };
  add_text(app, "-m,--model", set,
           "A Hugging Face folder of GPT-2, Llama, Mistral or Qwen2; or random:gpt2, random:char,ctx=16384, "
           "random:llama-tiny, random:FILE "
           "(default: the bundled character model)")
      ->type_name("MODEL");
}

void add_dtype_flag(CLI::App& app, ModelFlags& flags) {
  add_choice<DType>(app, "--dtype", flags.engine.dtype,
                    {{"f32", DType::f32},
                     {"f64", DType::f64},
                     {"bf16", DType::bf16},
                     {"f16", DType::f16},
                     {"int8", DType::int8},
                     {"int4", DType::int4}},
                    "Type of the weights; arithmetic and cache are f64 for f64, else f32 (default: f32)");
}

void add_engine_flags(CLI::App& app, ModelFlags& flags) {
  add_dtype_flag(app, flags);
  add_choice<CacheMode>(
      app, "--cache", flags.engine.cache, {{"contiguous", CacheMode::contiguous}, {"none", CacheMode::none}},
      "Where keys and values are kept; none computes them anew for every token (default: contiguous)");
  constexpr int kMostThreads = 1024;  // far above any machine's, far below what exhausts the system
  add_number(app, "--chunk", flags.engine.chunk, from_to(1, std::numeric_limits<int>::max()),
             "Most tokens of a prompt that one step takes; changes speed and memory, never a bit (default: 256)");
  add_number(app, "--threads", flags.engine.threads, from_to(1, kMostThreads),
             "Threads; changes speed, never a bit (default: as many as this process may run on)");
  app.add_flag("--pin", flags.engine.pin, "Keep each thread on one CPU");
}

void add_sampling_flags(CLI::App& app, SamplingParams& sampling) {
  constexpr int kMostInt = std::numeric_limits<int>::max();
  add_number(app, "--temperature", sampling.temperature, number_from(0),
             "0: greedy, the largest logit; above: logits are divided by it (default: 0)");
  add_number(app, "--top-k", sampling.top_k, from_to(0, kMostInt),
             "Keep the N most likely tokens; 0: all (default: 0)");
  add_number<double>(app, "--top-p", sampling.top_p,
                     {"a number above 0 and at most 1", [](double p) { return p > 0 && p <= 1; }},
                     "Keep the most likely tokens whose probabilities reach N together (default: 1)");
  add_number<double>(app, "--min-p", sampling.min_p,
                     {"a number from 0 to 1", [](double p) { return p >= 0 && p <= 1; }},
                     "Keep tokens at least N times as likely as the most likely one (default: 0)");
  add_number<double>(
      app, "--repetition-penalty", sampling.repetition_penalty,
      {"a finite number above 0", [](double p) { return p > 0 && p <= std::numeric_limits<double>::max(); }},
      "Logits of tokens seen before are divided (negative ones multiplied) by N (default: 1)");
  add_number<std::uint64_t>(app, "--seed", sampling.seed,
                            {"a whole number from 0 that fits 64 bits", [](std::uint64_t) { return true; }},
                            "Names the random numbers: the same seed gives the same text (default: 0)");
}

Result<std::vector<TokenId>> parse_ids(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto trim = [&](std::string_view s) {
    const auto first = s.find_first_not_of(kSpace);
    return first == s.npos ? std::string_view{} : s.substr(first, s.find_last_not_of(kSpace) - first + 1);
  };
  text = trim(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  std::vector<TokenId> ids;
  while (!(text = trim(text)).empty()) {
    const auto end = std::min(text.find_first_of(", \t\r\n"), text.size());
    TokenId id = 0;
    if (!parse_number(text.substr(0, end), id) || id < 0) {
      return fail(Code::invalid_argument,
                  fmt::format("token id {} is not a whole number from 0 that fits 32 bits: '{}'", ids.size() + 1,
                              text.substr(0, std::min<std::size_t>(end, 40))));
    }
    ids.push_back(id);
    text = trim(text.substr(end));
    if (!text.empty() && text.front() == ',') text.remove_prefix(1);
  }
  return ids;
}

CLI::Option* add_ids(CLI::App& app, const std::string& name, std::vector<TokenId>& target, const std::string& help) {
  auto set = [&target, name](const std::string& text) {
    auto ids = parse_ids(text);
    if (!ids) throw CLI::ValidationError(name, ids.error().message);
    if (ids->empty()) throw CLI::ValidationError(name, "must be at least one id");
    target = std::move(*ids);
  };
  return add_text(app, name, set, help)->type_name("ID,...");
}

}  // namespace stet::cli
