// The flags of stet plan: lists of contexts, batches, caches, layouts and sizes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "bill.hpp"

namespace stet::cli {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr int kMostBatch = 65536;

/// "8192", "8k", "1M"; none when it is no number of tokens or out of range.
std::optional<Pos> parse_tokens(std::string_view text) {
  Pos unit = 1;
  if (text.ends_with('k') || text.ends_with('K')) unit = 1024;
  if (text.ends_with('m') || text.ends_with('M')) unit = 1024 * 1024;
  if (unit > 1) text.remove_suffix(1);
  Pos tokens = 0;
  if (!parse_number(text, tokens) || tokens < 1 || tokens > kMostTokens / unit) return std::nullopt;
  return tokens * unit;
}

/// "16GiB", "1.5G" (powers of 1024), "80GB" (of 1000), "1000000"; none when it is no size of 1 to 2^62 bytes.
std::optional<std::size_t> parse_size(std::string_view text) {
  const auto end = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string unit(text.substr(end));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  double scale = 1;
  if (!unit.empty()) {
    const auto power = std::string_view("KMGT").find(unit[0]);
    const std::string rest = unit.substr(1);
    if (unit == "B") {
      unit.clear();
    } else if (power == std::string_view::npos || (!rest.empty() && rest != "IB" && rest != "B")) {
      return std::nullopt;
    } else {
      scale = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
    }
  }
  double number = 0;
  if (!parse_number(text.substr(0, end), number)) return std::nullopt;
  const double bytes = number * scale;
  if (!(bytes >= 1 && bytes <= 0x1p62)) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

std::optional<CacheMode> parse_layout(std::string_view text) {
  for (const CacheMode mode : {CacheMode::contiguous, CacheMode::growing, CacheMode::paged, CacheMode::none}) {
    if (text == name_of(mode)) return mode;
  }
  return std::nullopt;
}

/// A --kv without LAYERS begins a cache, one with LAYERS changes these layers of the cache before it.
void add_kv(BillFlags& flags, const std::string& text) {
  if (std::count(text.begin(), text.end(), ',') > 1) {
    throw CLI::ValidationError(
        "--kv",
        fmt::format("must be [LAYERS:]K[,V]: a comma parts K from V, several caches are several --kv, not '{}'", text));
  }
  const KvCodecs kv = parse_kv(text);
  auto& caches = flags.options.caches;
  if (!flags.kv_given) caches = {{}};
  const bool begins = kv.last < 0 && (flags.kv_given && !caches.back().empty());
  if (begins) caches.emplace_back();
  caches.back().push_back(kv);
  flags.kv_given = true;
}

}  // namespace

void add_bill_flags(CLI::App& app, BillFlags& flags) {
  auto& options = flags.options;
  auto set_model = [&flags](std::string text) {
    if (text.empty()) throw CLI::ValidationError("-m", "must name a model, not ''");
    flags.model.model = std::move(text);
  };
  add_text(app, "-m,--model", set_model,
           "A preset of --list; else a Hugging Face folder of GPT-2, Llama, Mistral or Qwen2, or random:gpt2, "
           "random:llama-tiny, ... A folder goes before a preset of its name (default: the bundled character model)")
      ->type_name("PRESET|PATH");
  app.add_flag("--list", flags.list, "Instead: the presets, with the bytes of a token");
  add_dtype_flag(app, flags.model);
  app.get_option("--dtype")->description(
      "Type of the weights; arithmetic is f64 for f64, else f32 (default: f32, of presets f16)");
  const std::string tokens = "tokens from 1 to 2^40 with commas between, k for 1024";
  add_list(
      app, "--context", tokens, "Tokens that one sequence may hold: 1k,8k,128k (default: the model's context)",
      [&options] { options.contexts.clear(); },
      [&options](std::string_view text) {
        const auto context = parse_tokens(text);
        if (context) options.contexts.push_back(*context);
        return context.has_value();
      });
  add_list(
      app, "--batch", fmt::format("whole numbers from 1 to {} with commas between", kMostBatch),
      "Sequences at a time: 1,8,32 (default: 1)", [&options] { options.batches.clear(); },
      [&options](std::string_view text) {
        int batch = 0;
        if (!parse_number(text, batch) || batch < 1 || batch > kMostBatch) return false;
        options.batches.push_back(batch);
        return true;
      });
  add_text(
      app, "--kv", [&flags](const std::string& text) { add_kv(flags, text); },
      "How keys and values are stored, of f64, f32, bf16, f16, int8, int4. Several times for several caches; one with "
      "LAYERS changes these layers of the cache before it (--kv int8 --kv 0-1:f32 is one cache) (default: the type of "
      "the arithmetic; of presets that of the weights, f16 beside int8 and int4)")
      ->type_name("[LAYERS:]K[,V]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_list(
      app, "--cache", "layouts of contiguous, growing, paged, none with commas between",
      "Where keys and values are kept (default: contiguous)", [&options] { options.layouts.clear(); },
      [&options](std::string_view text) {
        const auto layout = parse_layout(text);
        if (layout) options.layouts.push_back(*layout);
        return layout.has_value();
      });
  add_page_flags(app, flags.model.engine);
  add_list(
      app, "--fit", "sizes like 16GiB, 1.5G or 80GB with commas between",
      "Also tells the longest context of each batch, and the largest batch of each context, that fit into so much "
      "memory, weights included. GiB and G are of 1024, GB of 1000",
      [&options] { options.rooms.clear(); },
      [&options](std::string_view text) {
        const auto size = parse_size(text);
        if (size) options.rooms.push_back(*size);
        return size.has_value();
      });
}

}  // namespace stet::cli
