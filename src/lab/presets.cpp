// A little longer than most files: it is a table of models, and what each row of it means.
#include "lab/presets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "kernels/packed.hpp"
#include "model/model.hpp"
#include "weights/printable.hpp"

namespace stet::lab {
namespace {

// What the config.json of the named repository on the Hugging Face Hub says. Gated repositories say the same in their
// public copies (NousResearch/Llama-2-7b-hf, unsloth/gemma-3-4b-pt, ...).

struct Gpt2Row {
  const char *name, *source;
  int layers, heads, width;
};
constexpr Gpt2Row kGpt2[] = {
    {"gpt2", "openai-community/gpt2", 12, 12, 768},
    {"gpt2-medium", "openai-community/gpt2-medium", 24, 16, 1024},
    {"gpt2-large", "openai-community/gpt2-large", 36, 20, 1280},
    {"gpt2-xl", "openai-community/gpt2-xl", 48, 25, 1600},
};

struct LlamaRow {
  const char *name, *source, *family;
  int layers, heads, kv_heads, width, inner, vocab;
  Pos context;
  bool tied = false;
  Pos window = 0;  // of every layer
};
constexpr LlamaRow kLlama[] = {
    {"llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama", 32, 32, 32, 4096, 11008, 32000, 4096},
    {"llama-2-13b", "meta-llama/Llama-2-13b-hf", "llama", 40, 40, 40, 5120, 13824, 32000, 4096},
    {"llama-2-70b", "meta-llama/Llama-2-70b-hf", "llama", 80, 64, 8, 8192, 28672, 32000, 4096},
    {"llama-3-8b", "meta-llama/Meta-Llama-3-8B", "llama", 32, 32, 8, 4096, 14336, 128256, 8192},
    {"llama-3-70b", "meta-llama/Meta-Llama-3-70B", "llama", 80, 64, 8, 8192, 28672, 128256, 8192},
    {"llama-3.1-8b", "meta-llama/Llama-3.1-8B", "llama", 32, 32, 8, 4096, 14336, 128256, 131072},
    {"llama-3.1-70b", "meta-llama/Llama-3.1-70B", "llama", 80, 64, 8, 8192, 28672, 128256, 131072},
    {"mistral-7b", "mistralai/Mistral-7B-v0.1", "mistral", 32, 32, 8, 4096, 14336, 32000, 32768, false, 4096},
    {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", "qwen2", 24, 14, 2, 896, 4864, 151936, 32768, true},
    {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 28, 12, 2, 1536, 8960, 151936, 32768, true},
    {"qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct", "qwen2", 36, 16, 2, 2048, 11008, 151936, 32768, true},
    {"qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", "qwen2", 28, 28, 4, 3584, 18944, 152064, 32768},
    {"qwen2.5-14b", "Qwen/Qwen2.5-14B-Instruct", "qwen2", 48, 40, 8, 5120, 13824, 152064, 32768},
    {"qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", "qwen2", 64, 40, 8, 5120, 27648, 152064, 32768},
    {"qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct", "qwen2", 80, 64, 8, 8192, 29568, 152064, 32768},
};

// Every sixth layer sees everything, the others a window (text_config: sliding_window, sliding_window_pattern 6).
struct GemmaRow {
  const char *name, *source;
  int layers, heads, kv_heads, head_dim, width, inner, vocab;
  Pos context, window;
};
constexpr GemmaRow kGemma[] = {
    {"gemma-3-270m", "google/gemma-3-270m", 18, 4, 1, 256, 640, 2048, 262144, 32768, 512},
    {"gemma-3-1b", "google/gemma-3-1b-pt", 26, 4, 1, 256, 1152, 6912, 262144, 32768, 512},
    {"gemma-3-4b", "google/gemma-3-4b-pt", 34, 8, 4, 256, 2560, 10240, 262208, 131072, 1024},
    {"gemma-3-12b", "google/gemma-3-12b-pt", 48, 16, 8, 256, 3840, 15360, 262208, 131072, 1024},
    {"gemma-3-27b", "google/gemma-3-27b-pt", 62, 32, 16, 128, 5376, 21504, 262208, 131072, 1024},
};

// Multi-head latent attention and experts (DeepSeek-AI 2024, arXiv 2405.04434). The first layer's MLP is dense.
struct DeepseekRow {
  const char *name, *source;
  int layers, heads, width, inner, expert_inner, experts, shared, used;
  int q_rank;  // 0: queries are made in one product
};
constexpr DeepseekRow kDeepseek[] = {
    {"deepseek-v2", "deepseek-ai/DeepSeek-V2", 60, 128, 5120, 12288, 1536, 160, 2, 6, 1536},
    {"deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 27, 16, 2048, 10944, 1408, 64, 2, 6, 0},
};

/// The published character GPT: matrices alone, which is what its 6.55 MB in f64 are (6,555,648 bytes), of 65
/// characters. Its norms and biases, and how many there are, were not published.
constexpr const char* kCharGpt = "char-gpt";

/// Adds up the matrices and vectors of a model that Stet does not run, by the sizes that it would pack them to.
class Weights {
 public:
  explicit Weights(Shape& shape) : shape_(shape) {}

  void vectors(std::int64_t numbers) {
    shape_.parameters += numbers;
    shape_.weight_bytes += static_cast<std::size_t>(numbers) * size_of(arithmetic_of(shape_.dtype));
  }
  /// `count` of them, of which a token uses `used`.
  void matrices(std::int64_t in, std::int64_t out, std::int64_t count, std::int64_t used) {
    keep(in, out, count);
    shape_.layer_work += static_cast<double>(used) * static_cast<double>(in) * static_cast<double>(out);
  }
  void matrices(std::int64_t in, std::int64_t out, std::int64_t count) { matrices(in, out, count, count); }
  /// Token embedding and head.
  void ends(std::int64_t width, std::int64_t vocab, bool tied) {
    keep(width, vocab, tied ? 1 : 2);
    shape_.head_work = static_cast<double>(width) * static_cast<double>(vocab);
  }

 private:
  void keep(std::int64_t in, std::int64_t out, std::int64_t count) {
    shape_.parameters += count * in * out;
    shape_.weight_bytes += static_cast<std::size_t>(count) * kernels::Packed::bytes(shape_.dtype, in, out);
  }

  Shape& shape_;
};

Codec arithmetic_codec(DType dtype) {
  return dtype == DType::f64 ? Codec::f64 : Codec::f32;
}

std::string attention_words(int heads, int kv_heads, int head_dim) {
  if (kv_heads == heads) return fmt::format("MHA, {} heads of {}", heads, head_dim);
  return fmt::format("{}, {} of {} heads of {}", kv_heads == 1 ? "MQA" : "GQA", kv_heads, heads, head_dim);
}

Shape begin(const char* name, const char* source, DType dtype, Pos context) {
  Shape shape;
  shape.name = name;
  shape.source = source;
  shape.dtype = dtype;
  shape.context = context;
  return shape;
}

ModelConfig config_of(const Gpt2Row& row) {
  ModelConfig c;
  c.family = "gpt2";
  c.layers = row.layers;
  c.heads = c.kv_heads = row.heads;
  c.head_dim = row.width / row.heads;
  c.width = row.width;
  c.inner = 4 * row.width;
  c.vocab = 50257;
  c.context = 1024;
  return c;
}

ModelConfig config_of(const LlamaRow& row) {
  ModelConfig c;
  c.family = row.family;
  c.layers = row.layers;
  c.heads = row.heads;
  c.kv_heads = row.kv_heads;
  c.head_dim = row.width / row.heads;
  c.width = row.width;
  c.inner = row.inner;
  c.vocab = row.vocab;
  c.context = row.context;
  c.activation = Activation::silu;
  c.tied_head = row.tied;
  c.qkv_bias = c.family == "qwen2";
  if (row.window > 0) c.windows.assign(static_cast<std::size_t>(row.layers), row.window);
  return c;
}

Shape shape_of(const GemmaRow& row, DType dtype) {
  Shape shape = begin(row.name, row.source, dtype, row.context);
  shape.attention = attention_words(row.heads, row.kv_heads, row.head_dim);
  Weights weights(shape);
  const int q = row.heads * row.head_dim, kv = row.kv_heads * row.head_dim;
  weights.ends(row.width, row.vocab, true);
  weights.matrices(row.width, q + 2 * kv, row.layers);
  weights.matrices(q, row.width, row.layers);
  weights.matrices(row.width, 2 * row.inner, row.layers);
  weights.matrices(row.inner, row.width, row.layers);
  // Norms before and behind attention and MLP, of queries and keys, and the last one.
  weights.vectors(row.layers * (4 * row.width + 2 * row.head_dim) + row.width);
  constexpr int kPattern = 6;
  const Codec codec = arithmetic_codec(dtype);
  for (int i = 0; i < row.layers; ++i) {
    const Pos window = (i + 1) % kPattern == 0 ? 0 : row.window;
    shape.cache.layers.push_back({row.kv_heads, row.head_dim, row.head_dim, codec, codec, {window, 0}});
    shape.attend_work.push_back(2.0 * q);
  }
  return shape;
}

Shape shape_of(const DeepseekRow& row, DType dtype) {
  constexpr int kLatent = 512, kRotary = 64, kPlain = 128, kValue = 128;  // alike in both
  constexpr Pos kContext = 163840;
  constexpr int kVocab = 102400;
  Shape shape = begin(row.name, row.source, dtype, kContext);
  shape.attention = fmt::format("MLA, a latent of {} and {} rotary for {} heads", kLatent, kRotary, row.heads);
  Weights weights(shape);
  weights.ends(row.width, kVocab, false);
  const int q = row.heads * (kPlain + kRotary);
  if (row.q_rank > 0) {
    weights.matrices(row.width, row.q_rank, row.layers);
    weights.matrices(row.q_rank, q, row.layers);
  } else {
    weights.matrices(row.width, q, row.layers);
  }
  weights.matrices(row.width, kLatent + kRotary, row.layers);
  // Folded into queries and outputs this is as much work as its size, and the latent is never expanded.
  weights.matrices(kLatent, row.heads * (kPlain + kValue), row.layers);
  weights.matrices(row.heads * kValue, row.width, row.layers);
  weights.matrices(row.width, 2 * row.inner, 1);
  weights.matrices(row.inner, row.width, 1);
  const int sparse = row.layers - 1, all = row.experts + row.shared, used = row.used + row.shared;
  weights.matrices(row.width, 2 * row.expert_inner, sparse * all, sparse * used);
  weights.matrices(row.expert_inner, row.width, sparse * all, sparse * used);
  weights.matrices(row.width, row.experts, sparse);
  weights.vectors(row.layers * (2 * row.width + row.q_rank + kLatent) + row.width);
  // One vector for all heads, which is key and value at once; stored as if the latent were the key and the rotary part
  // of the keys the value.
  const Codec codec = arithmetic_codec(dtype);
  shape.cache.layers.assign(static_cast<std::size_t>(row.layers), {1, kLatent, kRotary, codec, codec, {}});
  shape.attend_work.assign(static_cast<std::size_t>(row.layers), row.heads * (2.0 * kLatent + kRotary));
  return shape;
}

Shape char_gpt(DType dtype) {
  constexpr int kLayers = 4, kHeads = 4, kWidth = 128, kVocab = 65;
  constexpr Pos kContext = 128;
  Shape shape = begin(kCharGpt, "the published character GPT", dtype, kContext);
  shape.attention = attention_words(kHeads, kHeads, kWidth / kHeads);
  const std::int64_t layers = kLayers * 12 * kWidth * kWidth, ends = 2 * kVocab * kWidth, positions = kContext * kWidth;
  shape.parameters = layers + ends + positions;
  shape.weight_bytes = static_cast<std::size_t>(shape.parameters) * static_cast<std::size_t>(bits_of(dtype)) / 8;
  shape.layer_work = static_cast<double>(layers);
  shape.head_work = kVocab * kWidth;
  const Codec codec = arithmetic_codec(dtype);
  shape.cache.layers.assign(kLayers, {kHeads, kWidth / kHeads, kWidth / kHeads, codec, codec, {}});
  shape.attend_work.assign(kLayers, 2.0 * kWidth);
  return shape;
}

template <class Row, std::size_t N>
const Row* find(const Row (&rows)[N], std::string_view name) {
  const auto* found = std::find_if(std::begin(rows), std::end(rows), [&](const Row& row) { return row.name == name; });
  return found == std::end(rows) ? nullptr : found;
}

template <class Row>
Shape preset_of(const Row& row, DType dtype) {
  Shape shape = lab::shape_of(config_of(row), row.name, dtype);
  shape.source = row.source;
  return shape;
}

/// Letters to put in, take out or exchange (Levenshtein 1966).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t exchanged = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

Shape shape_of(const ModelConfig& config, const std::string& name, DType dtype) {
  Shape shape;
  const model::Sizes sizes = model::sizes(config, dtype, 1);
  shape.name = name;
  shape.attention = attention_words(config.heads, config.kv_heads, config.head_dim);
  shape.context = config.context;
  shape.dtype = dtype;
  shape.parameters = sizes.parameters;
  shape.weight_bytes = sizes.weight_bytes;
  shape.cache = sizes.cache_spec;
  for (const auto& matrix : model::layer_matrices(config)) {
    shape.layer_work += static_cast<double>(config.layers) * matrix.in * matrix.out;
  }
  shape.head_work = static_cast<double>(config.width) * config.vocab;
  shape.attend_work.assign(shape.cache.layers.size(), 2.0 * config.heads * config.head_dim);
  return shape;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names = {kCharGpt};
  for (const auto& row : kGpt2) names.emplace_back(row.name);
  for (const auto& row : kLlama) names.emplace_back(row.name);
  for (const auto& row : kGemma) names.emplace_back(row.name);
  for (const auto& row : kDeepseek) names.emplace_back(row.name);
  return names;
}

Result<Shape> preset(std::string_view name, DType dtype) {
  if (name == kCharGpt) return char_gpt(dtype);
  if (const auto* row = find(kGpt2, name)) return preset_of(*row, dtype);
  if (const auto* row = find(kLlama, name)) return preset_of(*row, dtype);
  if (const auto* row = find(kGemma, name)) return shape_of(*row, dtype);
  if (const auto* row = find(kDeepseek, name)) return shape_of(*row, dtype);
  std::string like;
  for (const auto& other : names_like(name, preset_names())) like += (like.empty() ? "" : ", ") + other;
  return fail(Code::not_found, fmt::format("there is no preset \"{}\"{}", weights::printable(name),
                                           like.empty() ? "" : fmt::format("; there is {}", like)));
}

std::vector<std::string> names_like(std::string_view name, const std::vector<std::string>& names) {
  constexpr std::size_t kLongest = 64, kMost = 3;
  std::vector<std::pair<std::size_t, std::string>> near;
  if (name.size() > kLongest) return {};
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const auto& other : names) {
    const bool part = lower.size() >= 3 && other.find(lower) != other.npos;
    const std::size_t far = distance(lower, other);
    if (part || far <= std::max<std::size_t>(2, other.size() / 3)) near.emplace_back(far, other);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> like;
  for (const auto& [unused, other] : near) {
    if (like.size() < kMost) like.push_back(other);
  }
  return like;
}

}  // namespace stet::lab
