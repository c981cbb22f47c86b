// Llama (Touvron et al. 2023) and the families of its architecture, as Hugging Face publishes them: Mistral, Qwen2.
//
//   x = token embedding
//   for each layer:  x += attention(rms_norm(x)) ;  x += mlp(rms_norm(x))
//   logits = rms_norm(x) . head
//
// Positions enter by turning queries and keys (rotary, half-split); keys are stored turned, at absolute positions.
// Several query heads may share a KV head. mlp(h) = down(silu(gate(h)) x up(h)).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/rotary.hpp"
#include "kernels/run.hpp"
#include "model/loader.hpp"
#include "model/model.hpp"

namespace stet::model {
namespace {

using kernels::Attend;
using kernels::LayerNorm;
using kernels::Rotate;

// Widths of rows: of all query heads, of the KV heads, and of q | k | v side by side.
struct Widths {
  std::size_t q, kv, qkv;
  explicit Widths(const ModelConfig& c)
      : q(static_cast<std::size_t>(c.heads) * static_cast<std::size_t>(c.head_dim)),
        kv(static_cast<std::size_t>(c.kv_heads) * static_cast<std::size_t>(c.head_dim)),
        qkv(q + 2 * kv) {}
};

template <class T>
struct LlamaLayer {
  std::vector<T> norm_1, norm_2;
  Linear<T> qkv, attention_out, gate_up, down;  // q | k | v and gate | up side by side; no bias: empty
};

// The activations of a step, carved out of one workspace: the residual stream, what a sub-layer reads and writes, the
// widest intermediate (q | k | v and gate | up in turn), the angles of the rows' positions, and what int8 and int4
// matmuls quantise their inputs into.
template <class T>
struct LlamaActivations {
  std::size_t bytes = 0;
  T *x, *h, *wide, *cos, *sin;
  std::byte* quantized;

  LlamaActivations(const ModelConfig& c, DType weights, int rows, base::Buffer* workspace) {
    const auto carve = [&](std::size_t values) {
      std::byte* at = workspace == nullptr ? nullptr : workspace->data() + bytes;
      bytes += base::align_up(values * sizeof(T));
      return reinterpret_cast<T*>(at);
    };
    const Widths widths(c);
    const auto n = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(c.width),
               inner = static_cast<std::size_t>(c.inner);
    x = carve(n * width);
    h = carve(n * std::max(width, widths.q));
    wide = carve(n * std::max({widths.qkv, 2 * inner, width}));
    cos = carve(n * static_cast<std::size_t>(c.head_dim / 2));
    sin = carve(n * static_cast<std::size_t>(c.head_dim / 2));
    quantized = workspace == nullptr ? nullptr : workspace->data() + bytes;
    const int widest = std::max({c.width, static_cast<int>(widths.q), c.inner});
    bytes += base::align_up(kernels::quantized_bytes(weights, rows, widest));
  }
};

template <class T>
class Llama final : public Model {
 public:
  Llama(ModelConfig config, DType weights)
      : config_(std::move(config)),
        weights_(weights),
        widths_(config_),
        frequencies_(kernels::rope_frequencies(config_.rope, config_.head_dim)) {}

  Result<void> load(const weights::Source& source, const std::string& prefix,
                    const std::function<bool(double)>& progress);

  const ModelConfig& config() const noexcept override { return config_; }
  DType dtype() const noexcept override { return kDType<T>; }
  DType weights() const noexcept override { return weights_; }
  CacheSpec cache_spec() const override { return llama_sizes(config_, weights_, 1).cache_spec; }
  std::size_t weight_bytes() const noexcept override { return llama_sizes(config_, weights_, 1).weight_bytes; }
  std::size_t workspace_bytes(int rows) const noexcept override {
    return LlamaActivations<T>(config_, weights_, rows, nullptr).bytes;
  }

  Result<void> forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, LogitsOut out,
                       base::Buffer& workspace) const override;

 private:
  void hash_weights(base::Hasher& hasher) const override;
  using Activations = LlamaActivations<T>;
  Result<void> embed(const kernels::Compute& on, std::span<const Slice> slices, std::span<const TokenId> ids,
                     const Activations& a) const;
  // Each leaves what is to be added to the residual stream in `addend`, for the norm that follows to add.
  Result<void> attention(const kernels::Compute& on, Step& step, int layer, int rows, const Activations& a,
                         const T*& addend) const;
  Result<void> mlp(const kernels::Compute& on, int layer, int rows, const Activations& a, const T*& addend) const;
  void norm(const kernels::Compute& on, const std::vector<T>& gain, const T* addend, T* x, int rows, T* y) const;
  Result<void> linear(const kernels::Compute& on, const Linear<T>& linear, const T* x, std::size_t x_stride, T* y,
                      int rows, const Activations& a) const;

  ModelConfig config_;
  DType weights_;
  Widths widths_;
  std::vector<double> frequencies_;
  Packed token_embedding_;
  std::vector<LlamaLayer<T>> layers_;
  std::vector<T> norm_;
  Packed head_;  // empty when tied
};

template <class T>
Result<void> Llama<T>::forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, LogitsOut out,
                               base::Buffer& workspace) const {
  const int rows = static_cast<int>(ids.size());
  const auto width = static_cast<std::size_t>(config_.width);
  const Activations a(config_, weights_, rows, &workspace);
  if (auto ok = embed(on, step.slices(), ids, a); !ok) return ok;
  const T* addend = nullptr;
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (auto ok = attention(on, step, layer, rows, a, addend); !ok) return ok;
    if (auto ok = mlp(on, layer, rows, a, addend); !ok) return ok;
  }
  const int wanted = static_cast<int>(out.rows.size());
  for (int i = 0; i < wanted; ++i) {
    const std::size_t row = static_cast<std::size_t>(out.rows[static_cast<std::size_t>(i)]) * width;
    T* to = a.wide + static_cast<std::size_t>(i) * width;
    std::copy_n(a.x + row, width, to);
    if (addend != nullptr) on.target->table<T>().add({addend + row, width}, {to, width});
  }
  norm(on, norm_, nullptr, a.wide, wanted, a.h);
  const Packed& head = config_.tied_head ? token_embedding_ : head_;
  Matmul<T> op{a.h, width, &head, nullptr, reinterpret_cast<T*>(out.data), static_cast<std::size_t>(config_.vocab)};
  op.head = true;
  if (kernels::run_matmul(on, op, wanted, a.quantized)) return {};
  return not_finite("the head", weights_);
}

template <class T>
Result<void> Llama<T>::embed(const kernels::Compute& on, std::span<const Slice> slices, std::span<const TokenId> ids,
                             const Activations& a) const {
  auto positions = check_inputs(config_, slices, ids);
  if (!positions) return pass(positions);
  const auto width = static_cast<std::size_t>(config_.width);
  on.pool->run(ids.size(), [&](std::size_t row) {
    token_embedding_.get_output(ids[row], std::span<T>(a.x + row * width, width));
    kernels::rope_angles(frequencies_, (*positions)[row], a.cos + row * frequencies_.size(),
                         a.sin + row * frequencies_.size());
  });
  return {};
}

template <class T>
Result<void> Llama<T>::attention(const kernels::Compute& on, Step& step, int layer, int rows, const Activations& a,
                                 const T*& addend) const {
  const LlamaLayer<T>& w = layers_[static_cast<std::size_t>(layer)];
  norm(on, w.norm_1, addend, a.x, rows, a.h);
  const auto width = static_cast<std::size_t>(config_.width);
  if (auto ok = linear(on, w.qkv, a.h, width, a.wide, rows, a); !ok) return ok;
  // q and k lie side by side: all their heads turn.
  kernels::run_rotate(
      on, Rotate<T>{a.wide, widths_.qkv, config_.heads + config_.kv_heads, config_.head_dim, a.cos, a.sin}, rows);

  const auto rows_of = [&](const T* first) {
    return Rows{kDType<T>, reinterpret_cast<const std::byte*>(first), widths_.qkv * sizeof(T)};
  };
  const T scale = T(1) / std::sqrt(static_cast<T>(config_.head_dim));
  std::vector<Attend<T>> slices;
  const auto step_slices = step.slices();
  for (std::size_t s = 0; s < step_slices.size(); ++s) {
    const auto row = static_cast<std::size_t>(step_slices[s].row);
    slices.push_back({step.view(layer, static_cast<int>(s)), step_slices[s].first, step_slices[s].tokens, config_.heads,
                      scale, a.wide + row * widths_.qkv, widths_.qkv, a.h + row * widths_.q, widths_.q});
  }
  const auto store = [&](int head) {
    step.write(layer, {head, head + 1}, rows_of(a.wide + widths_.q), rows_of(a.wide + widths_.q + widths_.kv));
  };
  kernels::run_attend<T>(on, config_.kv_heads, store, slices);

  if (auto ok = linear(on, w.attention_out, a.h, widths_.q, a.wide, rows, a); !ok) return ok;  // q, k, v are done with
  addend = a.wide;
  return {};
}

template <class T>
Result<void> Llama<T>::mlp(const kernels::Compute& on, int layer, int rows, const Activations& a,
                           const T*& addend) const {
  const LlamaLayer<T>& w = layers_[static_cast<std::size_t>(layer)];
  const auto inner = static_cast<std::size_t>(config_.inner);
  norm(on, w.norm_2, addend, a.x, rows, a.h);
  if (auto ok = linear(on, w.gate_up, a.h, static_cast<std::size_t>(config_.width), a.wide, rows, a); !ok) return ok;
  kernels::run_gate<T>(on, config_.activation, a.wide, config_.inner, rows);
  if (auto ok = linear(on, w.down, a.wide, 2 * inner, a.h, rows, a); !ok) return ok;
  addend = a.h;
  return {};
}

template <class T>
void Llama<T>::norm(const kernels::Compute& on, const std::vector<T>& gain, const T* addend, T* x, int rows,
                    T* y) const {
  const auto width = static_cast<std::size_t>(config_.width);
  kernels::run_add_layer_norm(
      on, addend, x,
      LayerNorm<T>{nullptr, width, gain.data(), nullptr, static_cast<T>(config_.norm_epsilon), config_.width, y, width},
      rows);
}

template <class T>
Result<void> Llama<T>::linear(const kernels::Compute& on, const Linear<T>& linear, const T* x, std::size_t x_stride,
                              T* y, int rows, const Activations& a) const {
  const T* bias = linear.bias.empty() ? nullptr : linear.bias.data();
  const Matmul<T> op{x, x_stride, &linear.weight, bias, y, static_cast<std::size_t>(linear.weight.out())};
  if (kernels::run_matmul(on, op, rows, a.quantized)) return {};
  return not_finite("a linear layer", weights_);
}

// Matrices of the same input beside each other, with their biases where the config has any.
template <class T>
Result<void> beside(Loader<T>& in, const std::string& layer, const std::vector<std::pair<const char*, int>>& parts,
                    int width, bool bias, Linear<T>& to) {
  int out = 0;
  for (const auto& [name, rows] : parts) out += rows;
  if (auto ok = in.allocate(layer + parts.front().first, width, out, to.weight); !ok) return ok;
  if (bias) to.bias.resize(static_cast<std::size_t>(out));
  int at = 0;
  for (const auto& [name, rows] : parts) {
    if (auto ok = in.outputs_at(layer + name + ".weight", at, rows, width, to.weight); !ok) return ok;
    if (bias) {
      const std::span<T> part(to.bias.data() + at, static_cast<std::size_t>(rows));
      if (auto ok = in.vector_at(layer + name + ".bias", part); !ok) return ok;
    }
    at += rows;
  }
  return {};
}

template <class T>
Result<void> Llama<T>::load(const weights::Source& source, const std::string& prefix,
                            const std::function<bool(double)>& progress) {
  const ModelConfig& c = config_;
  const int q = static_cast<int>(widths_.q), kv = static_cast<int>(widths_.kv);
  Loader<T> in(source, prefix, weights_, progress);
  if (auto ok = in.outputs("embed_tokens.weight", c.vocab, c.width, token_embedding_); !ok) return ok;
  layers_.resize(static_cast<std::size_t>(c.layers));
  for (int i = 0; i < c.layers; ++i) {
    LlamaLayer<T>& layer = layers_[static_cast<std::size_t>(i)];
    const std::string name = fmt::format("layers.{}.", i);
    if (auto ok = in.vector(name + "input_layernorm.weight", c.width, layer.norm_1); !ok) return ok;
    if (auto ok = beside(in, name, {{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}},
                         c.width, c.qkv_bias, layer.qkv);
        !ok)
      return ok;
    if (auto ok = beside(in, name, {{"self_attn.o_proj", c.width}}, q, c.out_bias, layer.attention_out); !ok) return ok;
    if (auto ok = in.vector(name + "post_attention_layernorm.weight", c.width, layer.norm_2); !ok) return ok;
    if (auto ok = beside(in, name, {{"mlp.gate_proj", c.inner}, {"mlp.up_proj", c.inner}}, c.width, c.mlp_bias,
                         layer.gate_up);
        !ok)
      return ok;
    if (auto ok = beside(in, name, {{"mlp.down_proj", c.width}}, c.inner, c.mlp_bias, layer.down); !ok) return ok;
  }
  if (auto ok = in.vector("norm.weight", c.width, norm_); !ok) return ok;
  if (!c.tied_head) return in.outputs("lm_head.weight", c.vocab, c.width, head_);
  return {};
}

template <class T>
void Llama<T>::hash_weights(base::Hasher& hasher) const {
  hash(hasher, token_embedding_);
  for (const LlamaLayer<T>& layer : layers_) {
    hash(hasher, layer.norm_1, layer.norm_2);
    for (const Linear<T>* linear : {&layer.qkv, &layer.attention_out, &layer.gate_up, &layer.down}) {
      hash(hasher, linear->weight, linear->bias);
    }
  }
  hash(hasher, norm_, head_);
}

template <class T>
Sizes sizes_as(const ModelConfig& c, DType dtype, int rows) {
  Sizes s;
  const Widths widths(c);
  const auto q = static_cast<std::int64_t>(widths.q), qkv = static_cast<std::int64_t>(widths.qkv);
  const std::int64_t width = c.width, inner = c.inner, embeddings = c.vocab * width;
  const std::int64_t biases = (c.qkv_bias ? qkv : 0) + (c.out_bias ? width : 0) + (c.mlp_bias ? 2 * inner + width : 0);
  const std::int64_t vectors = 2 * width + biases;  // of a layer
  s.parameters =
      embeddings * (c.tied_head ? 1 : 2) + width + c.layers * (vectors + width * qkv + q * width + 3 * width * inner);
  const auto packed = [dtype](std::int64_t in, std::int64_t out) { return Packed::bytes(dtype, in, out); };
  s.weight_bytes =
      packed(width, c.vocab) * (c.tied_head ? 1 : 2) + static_cast<std::size_t>(width) * sizeof(T) +
      static_cast<std::size_t>(c.layers) * (static_cast<std::size_t>(vectors) * sizeof(T) + packed(width, qkv) +
                                            packed(q, width) + packed(width, 2 * inner) + packed(inner, width));
  s.workspace_bytes = LlamaActivations<T>(c, dtype, rows, nullptr).bytes;
  s.cache_spec = cache_spec_of(c, kCodec<T>);
  return s;
}

}  // namespace

Sizes llama_sizes(const ModelConfig& config, DType weights, int rows) {
  return weights == DType::f64 ? sizes_as<double>(config, weights, rows) : sizes_as<float>(config, weights, rows);
}

Result<std::unique_ptr<Model>> load_llama(const ModelConfig& config, const weights::Source& source,
                                          const std::string& prefix, DType dtype,
                                          const std::function<bool(double)>& progress) {
  return load_family<Llama>(config, source, prefix, dtype, progress);
}

}  // namespace stet::model
