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

CLI::Option* add_list(CLI::App& app, const std::string& name, const std::string& words, const std::string& help,
                      const std::function<void()>& clear, const std::function<bool(std::string_view)>& add) {
  auto set = [=, label = name.substr(name.rfind(',') + 1)](const std::string& text) {
    clear();
    for (std::size_t at = 0; at <= text.size();) {
      const auto end = std::min(text.find(',', at), text.size());
      const std::string item = text.substr(at, end - at);
      if (!add(item)) throw CLI::ValidationError(label, fmt::format("must be {}, not '{}'", words, item));
      at = end + 1;
    }
  };
  return add_text(app, name, set, help)->type_name("LIST");
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
                    "Type of the weights; arithmetic is f64 for f64, else f32 (default: f32)");
}

namespace {

Codec parse_codec(std::string_view word) {
  for (const Codec codec : {Codec::f64, Codec::f32, Codec::bf16, Codec::f16, Codec::int8, Codec::int4}) {
    if (word == name_of(codec)) return codec;
  }
  throw CLI::ValidationError("--kv",
                             fmt::format("must be [LAYERS:]K[,V] of f64, f32, bf16, f16, int8, int4, not '{}'", word));
}

}  // namespace

KvCodecs parse_kv(std::string_view text) {
  KvCodecs kv;
  if (const auto colon = text.find(':'); colon != text.npos) {
    const std::string_view layers = text.substr(0, colon);
    const auto dash = std::min(layers.find('-'), layers.size());
    const std::string_view last = dash < layers.size() ? layers.substr(dash + 1) : layers;
    if (!parse_number(layers.substr(0, dash), kv.first) || !parse_number(last, kv.last) || kv.first < 0 ||
        kv.last < kv.first) {
      throw CLI::ValidationError("--kv", fmt::format("layers must be a number or FIRST-LAST, not '{}'", layers));
    }
    text.remove_prefix(colon + 1);
  }
  const auto comma = std::min(text.find(','), text.size());
  kv.k = parse_codec(text.substr(0, comma));
  kv.v = comma < text.size() ? parse_codec(text.substr(comma + 1)) : kv.k;
  return kv;
}

namespace {

/// "256", "256,4"
Span parse_span(std::string_view text) {
  const auto comma = std::min(text.find(','), text.size());
  Span span;
  if (!parse_number(text.substr(0, comma), span.window) || span.window < 1 ||
      (comma < text.size() && (!parse_number(text.substr(comma + 1), span.sinks) || span.sinks < 0))) {
    throw CLI::ValidationError("--window",
                               fmt::format("must be W or W,SINKS, whole numbers from 1 and 0, not '{}'", text));
  }
  return span;
}

}  // namespace

void add_layout_flags(CLI::App& app, EngineOptions& engine) {
  add_choice<CacheMode>(app, "--cache", engine.cache,
                        {{"contiguous", CacheMode::contiguous},
                         {"growing", CacheMode::growing},
                         {"paged", CacheMode::paged},
                         {"none", CacheMode::none}},
                        "Where keys and values are kept: room for each sequence, a copy that grows with each step, or "
                        "pages from a pool; none computes them anew for every token. Changes speed and memory, never a "
                        "bit (default: contiguous)");
  add_page_flags(app, engine);
}

void add_page_flags(CLI::App& app, EngineOptions& engine) {
  add_number<Pos>(app, "--page", engine.page_tokens,
                  {"16, 32, 64 or 128", [](Pos n) { return n == 16 || n == 32 || n == 64 || n == 128; }},
                  "With --cache paged: tokens in a page (default: 16)");
  add_number(app, "--pool", engine.pool_tokens, from_to<Pos>(1, Pos{1} << 40),
             "With --cache paged: tokens that all sequences can hold together; those that do not fit wait (default: "
             "enough for all)");
  add_text(
      app, "--window", [&engine](const std::string& text) { engine.span = parse_span(text); },
      "Each query sees the last W tokens only, itself counted, and of the others the first SINKS; what nobody sees any "
      "more is evicted (default: what the model says)")
      ->type_name("W[,SINKS]");
}

void add_cache_flags(CLI::App& app, ModelFlags& flags) {
  add_layout_flags(app, flags.engine);
  add_text(
      app, "--kv", [&flags](const std::string& text) { flags.engine.kv.push_back(parse_kv(text)); },
      "How keys and values are stored, of f64, f32, bf16, f16, int8, int4; several times for several layers "
      "(--kv int8 --kv 0-1:f32). Smaller ones change the text a little (stet eval --kv) (default: the type of the "
      "arithmetic)")
      ->type_name("[LAYERS:]K[,V]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_size_flags(CLI::App& app, ModelFlags& flags) {
  add_number(app, "--context", flags.engine.max_len, from_to<std::int64_t>(1, std::int64_t{1} << 40),
             "Tokens that one sequence may hold (default: the model's context)");
  add_number(app, "--batch", flags.engine.max_seqs, from_to(1, 65536), "Sequences at a time (default: 1)");
}

void add_engine_flags(CLI::App& app, ModelFlags& flags) {
  add_dtype_flag(app, flags);
  add_cache_flags(app, flags);
  constexpr int kMostThreads = 1024;  // far above any machine's, far below what exhausts the system
  add_number(app, "--chunk", flags.engine.chunk, from_to(1, std::numeric_limits<int>::max()),
             "Most tokens of a prompt that one step takes; changes speed and memory, never a bit (default: 256)");
  add_number(app, "--threads", flags.engine.threads, from_to(1, kMostThreads),
             "Threads; changes speed, never a bit (default: as many as this process may run on)");
  app.add_flag("--pin", flags.engine.pin, "Keep each thread on one CPU");
  app.add_flag("--poison", flags.engine.poison,
               "Fill slots of the cache that hold no row with NaN: a read of one could not go unseen");
}

void add_past_limit_flag(CLI::App& app, Request& request) {
  add_choice<PastLimit>(app, "--past-limit", request.past_limit,
                        {{"stop", PastLimit::stop}, {"recompute", PastLimit::recompute}},
                        "Where the model's context is full: end there, or compute the last tokens that fit anew for "
                        "every further one, which is exact and slow (stet limit) (default: stop)");
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
