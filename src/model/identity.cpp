// What a model is, for those who keep its keys and values: a digest of its weights and its config as text.
#include <fmt/format.h>

#include <array>
#include <iterator>

#include "model/loader.hpp"
#include "model/model.hpp"

namespace stet::model {
namespace {

// Layers' values, as one when they are all the same.
std::string of_layers(const CacheSpec& spec, Pos Span::*field) {
  std::string text;
  bool same = true;
  for (const LayerSpec& layer : spec.layers) {
    same = same && layer.span.*field == spec.layers.front().span.*field;
    text += fmt::format("{}{}", text.empty() ? "" : ",", layer.span.*field);
  }
  return same && !spec.layers.empty() ? fmt::format("{}", spec.layers.front().span.*field) : text;
}

const char* name_of(Rope::Scaling scaling) noexcept {
  switch (scaling) {
    case Rope::Scaling::linear:
      return "linear";
    case Rope::Scaling::llama3:
      return "llama3";
    case Rope::Scaling::none:
      break;
  }
  return "none";
}

class Lines {
 public:
  template <class V>
  void add(const char* key, const V& value) {
    fmt::format_to(std::back_inserter(text_), "{}={}\n", key, value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_shapes(Lines& to, const ModelConfig& c) {
  to.add("model_type", c.family);
  to.add("num_hidden_layers", c.layers);
  to.add("num_attention_heads", c.heads);
  to.add("num_key_value_heads", c.kv_heads);
  to.add("head_dim", c.head_dim);
  to.add("hidden_size", c.width);
  to.add("intermediate_size", c.inner);
  to.add("vocab_size", c.vocab);
  to.add("max_position_embeddings", c.context);
  to.add("tie_word_embeddings", c.tied_head);
}

void add_llama(Lines& to, const ModelConfig& c) {
  to.add("rms_norm_eps", c.norm_epsilon);
  to.add("qkv_bias", c.qkv_bias);
  to.add("out_bias", c.out_bias);
  to.add("mlp_bias", c.mlp_bias);
  to.add("rope_theta", c.rope.theta);
  to.add("rope_type", name_of(c.rope.scaling));
  if (c.rope.scaling == Rope::Scaling::none) return;
  to.add("rope_factor", c.rope.factor);
  if (c.rope.scaling == Rope::Scaling::linear) return;
  to.add("rope_low_freq_factor", c.rope.low_frequency);
  to.add("rope_high_freq_factor", c.rope.high_frequency);
  to.add("rope_original_max_position_embeddings", c.rope.original_context);
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
void hash_vector(base::Hasher& hasher, const std::vector<T>& vector) {
  const std::array<std::int64_t, 2> head = {static_cast<std::int64_t>(kDType<T>),
                                            static_cast<std::int64_t>(vector.size())};
  hasher.update(bytes_of(head));
  hasher.update(std::as_bytes(std::span(vector)));
}

}  // namespace

void hash(base::Hasher& hasher, const Packed& matrix) {
  const std::array<std::int64_t, 3> head = {static_cast<std::int64_t>(matrix.type()), matrix.in(), matrix.out()};
  hasher.update(bytes_of(head));
  hasher.update(matrix.stored());
}

void hash(base::Hasher& hasher, const std::vector<float>& vector) {
  hash_vector(hasher, vector);
}

void hash(base::Hasher& hasher, const std::vector<double>& vector) {
  hash_vector(hasher, vector);
}

base::Digest Model::weights_digest() const {
  std::call_once(digested_, [&] {
    base::Hasher hasher;
    hash_weights(hasher);
    digest_ = hasher.digest();
  });
  return digest_;
}

std::string Model::canonical_config() const {
  const ModelConfig& c = config();
  Lines lines;
  add_shapes(lines, c);
  lines.add("hidden_act", stet::name_of(c.activation));
  if (c.family == "gpt2") {
    lines.add("layer_norm_epsilon", c.norm_epsilon);
    lines.add("scale_attn_weights", c.scale_attention);
    lines.add("scale_attn_by_inverse_layer_idx", c.scale_attention_by_layer);
  } else {
    add_llama(lines, c);
  }
  const CacheSpec spec = cache_spec();
  lines.add("sliding_window", of_layers(spec, &Span::window));
  lines.add("attention_sinks", of_layers(spec, &Span::sinks));
  lines.add("weights_dtype", stet::name_of(weights()));
  return lines.take();
}

}  // namespace stet::model
