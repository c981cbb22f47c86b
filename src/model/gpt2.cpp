// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the reference is openai/gpt-2
// model.py):
//
//   x = wte[id] + wpe[position]
//   for each layer:  x += attention(layer_norm(x)) ;  x += mlp(layer_norm(x))
//   logits = layer_norm(x) . head
//
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/run.hpp"
#include "model/loader.hpp"
#include "model/model.hpp"

namespace stet::model {
namespace {

using kernels::Attend;
using kernels::LayerNorm;

template <class T>
struct Layer {
  Norm<T> norm_1, norm_2;
  Linear<T> qkv, attention_out, up, down;
};

// The activations of a step, carved out of one workspace: the residual stream, what a sub-layer reads and writes, the
// widest intermediate, which q|k|v and the MLP take in turn, and what int8 and int4 matmuls quantise their inputs into.
template <class T>
struct Activations {
  std::size_t width, bytes = 0;
  T *x, *h, *wide_rows;
  std::byte* quantized;

  Activations(const ModelConfig& c, DType weights, int rows, base::Buffer* workspace)
      : width(static_cast<std::size_t>(c.width)) {
    const auto carve = [&](std::size_t size) {
      std::byte* at = workspace == nullptr ? nullptr : workspace->data() + bytes;
      bytes += base::align_up(size);
      return at;
    };
    const std::size_t row = static_cast<std::size_t>(rows) * sizeof(T);
    x = reinterpret_cast<T*>(carve(row * width));
    h = reinterpret_cast<T*>(carve(row * width));
    wide_rows = reinterpret_cast<T*>(carve(row * static_cast<std::size_t>(std::max(3 * c.width, c.inner))));
    quantized = carve(kernels::quantized_bytes(weights, rows, std::max(c.width, c.inner)));
  }
};

template <class T>
class Gpt2 final : public Model {
 public:
  Gpt2(ModelConfig config, DType weights) : config_(std::move(config)), weights_(weights) {}

  Result<void> load(const weights::Source& source, const std::string& prefix,
                    const std::function<bool(double)>& progress);

  const ModelConfig& config() const noexcept override { return config_; }
  DType dtype() const noexcept override { return kDType<T>; }
  DType weights() const noexcept override { return weights_; }
  CacheSpec cache_spec() const override { return gpt2_sizes(config_, weights_, 1).cache_spec; }
  std::size_t weight_bytes() const noexcept override { return gpt2_sizes(config_, weights_, 1).weight_bytes; }
  std::size_t workspace_bytes(int rows) const noexcept override {
    return Activations<T>(config_, weights_, rows, nullptr).bytes;
  }

  Result<void> forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, LogitsOut out,
                       base::Buffer& workspace) const override;

 private:
  void hash_weights(base::Hasher& hasher) const override;
  Result<void> embed(const kernels::Compute& on, std::span<const Slice> slices, std::span<const TokenId> ids,
                     T* x) const;
  // Each leaves what is to be added to the residual stream in `addend`, for the norm that follows to add.
  Result<void> attention(const kernels::Compute& on, Step& step, int layer, int rows, const Activations<T>& a,
                         const T*& addend) const;
  Result<void> mlp(const kernels::Compute& on, int layer, int rows, const Activations<T>& a, const T*& addend) const;
  void norm(const kernels::Compute& on, const Norm<T>& norm, const T* addend, T* x, int rows, T* y) const;
  Result<void> linear(const kernels::Compute& on, const Matmul<T>& op, int rows, const Activations<T>& a,
                      const char* what) const;
  const Packed& head() const { return config_.tied_head ? token_embedding_ : head_; }

  ModelConfig config_;
  DType weights_;
  Packed token_embedding_;  // [width, vocab] panels: a tied head's weights and the embedding's rows at once
  std::vector<T> position_embedding_;
  std::vector<Layer<T>> layers_;
  Norm<T> norm_f_;
  Packed head_;  // empty when tied
};

template <class T>
Result<void> Gpt2<T>::forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, LogitsOut out,
                              base::Buffer& workspace) const {
  const int rows = static_cast<int>(ids.size());
  const Activations<T> a(config_, weights_, rows, &workspace);
  if (auto ok = embed(on, step.slices(), ids, a.x); !ok) return ok;
  const T* addend = nullptr;
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (auto ok = attention(on, step, layer, rows, a, addend); !ok) return ok;
    if (auto ok = mlp(on, layer, rows, a, addend); !ok) return ok;
  }
  // Only the rows whose logits are wanted go through the last norm and the head, the largest matrix of a small model.
  const int wanted = static_cast<int>(out.rows.size());
  for (int i = 0; i < wanted; ++i) {
    const std::size_t row = static_cast<std::size_t>(out.rows[static_cast<std::size_t>(i)]) * a.width;
    T* to = a.wide_rows + static_cast<std::size_t>(i) * a.width;
    std::copy_n(a.x + row, a.width, to);
    if (addend != nullptr) on.target->table<T>().add({addend + row, a.width}, {to, a.width});
  }
  norm(on, norm_f_, nullptr, a.wide_rows, wanted, a.h);
  Matmul<T> op{a.h, a.width, &head(), nullptr, reinterpret_cast<T*>(out.data), static_cast<std::size_t>(config_.vocab)};
  op.head = true;
  return linear(on, op, wanted, a, "the head");
}

template <class T>
Result<void> Gpt2<T>::embed(const kernels::Compute& on, std::span<const Slice> slices, std::span<const TokenId> ids,
                            T* x) const {
  auto positions = check_inputs(config_, slices, ids);
  if (!positions) return pass(positions);
  const auto width = static_cast<std::size_t>(config_.width);
  on.pool->run(ids.size(), [&](std::size_t row) {
    const std::span<T> to(x + row * width, width);
    token_embedding_.get_output(ids[row], to);
    on.target->table<T>().add({position_embedding_.data() + static_cast<std::size_t>((*positions)[row]) * width, width},
                              to);
  });
  return {};
}

template <class T>
Result<void> Gpt2<T>::attention(const kernels::Compute& on, Step& step, int layer, int rows, const Activations<T>& a,
                                const T*& addend) const {
  const Layer<T>& w = layers_[static_cast<std::size_t>(layer)];
  norm(on, w.norm_1, addend, a.x, rows, a.h);
  T* qkv = a.wide_rows;  // a row is q | k | v, each `width` long
  if (auto ok = linear(on, op(w.qkv, a.h, a.width, qkv), rows, a, "attention"); !ok) return ok;

  const std::size_t stride = 3 * a.width;
  const auto rows_of = [&](const T* first) {
    return Rows{kDType<T>, reinterpret_cast<const std::byte*>(first), stride * sizeof(T)};
  };
  T scale = config_.scale_attention ? T(1) / std::sqrt(static_cast<T>(config_.head_dim)) : T(1);
  if (config_.scale_attention_by_layer) scale = scale / static_cast<T>(layer + 1);
  std::vector<Attend<T>> slices;
  const auto step_slices = step.slices();
  for (std::size_t s = 0; s < step_slices.size(); ++s) {
    const auto row = static_cast<std::size_t>(step_slices[s].row);
    slices.push_back({step.view(layer, static_cast<int>(s)), step_slices[s].first, step_slices[s].tokens, config_.heads,
                      scale, qkv + row * stride, stride, a.h + row * a.width, a.width});
  }
  const auto store = [&](int head) {
    step.write(layer, {head, head + 1}, rows_of(qkv + a.width), rows_of(qkv + 2 * a.width));
  };
  kernels::run_attend<T>(on, config_.kv_heads, store, slices);

  T* projected = a.wide_rows;  // q, k and v are no longer needed
  if (auto ok = linear(on, op(w.attention_out, a.h, a.width, projected), rows, a, "attention's projection"); !ok)
    return ok;
  addend = projected;
  return {};
}

template <class T>
Result<void> Gpt2<T>::mlp(const kernels::Compute& on, int layer, int rows, const Activations<T>& a,
                          const T*& addend) const {
  const Layer<T>& w = layers_[static_cast<std::size_t>(layer)];
  const auto inner = static_cast<std::size_t>(config_.inner);
  norm(on, w.norm_2, addend, a.x, rows, a.h);
  if (auto ok = linear(on, op(w.up, a.h, a.width, a.wide_rows), rows, a, "the MLP"); !ok) return ok;
  kernels::run_activate<T>(on, config_.activation, {a.wide_rows, static_cast<std::size_t>(rows) * inner});
  if (auto ok = linear(on, op(w.down, a.wide_rows, inner, a.h), rows, a, "the MLP's projection"); !ok) return ok;
  addend = a.h;
  return {};
}

template <class T>
void Gpt2<T>::norm(const kernels::Compute& on, const Norm<T>& norm, const T* addend, T* x, int rows, T* y) const {
  const auto width = static_cast<std::size_t>(config_.width);
  kernels::run_add_layer_norm(on, addend, x,
                              LayerNorm<T>{nullptr, width, norm.gain.data(), norm.bias.data(),
                                           static_cast<T>(config_.norm_epsilon), config_.width, y, width},
                              rows);
}

template <class T>
Result<void> Gpt2<T>::linear(const kernels::Compute& on, const Matmul<T>& op, int rows, const Activations<T>& a,
                             const char* what) const {
  if (kernels::run_matmul(on, op, rows, a.quantized)) return {};
  return not_finite(what, weights_);
}

// ---- Loading

template <class T>
Result<void> Gpt2<T>::load(const weights::Source& source, const std::string& prefix,
                           const std::function<bool(double)>& progress) {
  const ModelConfig& c = config_;
  Loader<T> in(source, prefix, weights_, progress);
  if (auto ok = in.outputs("wte.weight", c.vocab, c.width, token_embedding_); !ok) return ok;
  if (auto ok = in.vector("wpe.weight", c.context * c.width, position_embedding_); !ok) return ok;
  layers_.resize(static_cast<std::size_t>(c.layers));
  for (int i = 0; i < c.layers; ++i) {
    Layer<T>& layer = layers_[static_cast<std::size_t>(i)];
    const std::string name = fmt::format("h.{}.", i);
    if (auto ok = in.norm(name + "ln_1", c.width, layer.norm_1); !ok) return ok;
    if (auto ok = in.conv1d(name + "attn.c_attn", c.width, 3 * c.width, layer.qkv); !ok) return ok;
    if (auto ok = in.conv1d(name + "attn.c_proj", c.width, c.width, layer.attention_out); !ok) return ok;
    if (auto ok = in.norm(name + "ln_2", c.width, layer.norm_2); !ok) return ok;
    if (auto ok = in.conv1d(name + "mlp.c_fc", c.width, c.inner, layer.up); !ok) return ok;
    if (auto ok = in.conv1d(name + "mlp.c_proj", c.inner, c.width, layer.down); !ok) return ok;
  }
  if (auto ok = in.norm("ln_f", c.width, norm_f_); !ok) return ok;
  if (!c.tied_head) return in.outputs("lm_head.weight", c.vocab, c.width, head_);
  return {};
}

template <class T>
void Gpt2<T>::hash_weights(base::Hasher& hasher) const {
  hash(hasher, token_embedding_);
  hash(hasher, position_embedding_);
  for (const Layer<T>& layer : layers_) {
    for (const Norm<T>* norm : {&layer.norm_1, &layer.norm_2}) hash(hasher, norm->gain, norm->bias);
    for (const Linear<T>* linear : {&layer.qkv, &layer.attention_out, &layer.up, &layer.down}) {
      hash(hasher, linear->weight, linear->bias);
    }
  }
  hash(hasher, norm_f_.gain, norm_f_.bias, head_);
}

template <class T>
Sizes sizes_as(const ModelConfig& c, DType dtype, int rows) {
  Sizes s;
  const std::int64_t width = c.width, inner = c.inner, embeddings = c.vocab * width, positions = c.context * width;
  const std::int64_t vectors = 4 * width + 3 * width + width + inner + width;  // of a layer: two norms, four biases
  const std::int64_t head = c.tied_head ? 0 : embeddings;
  s.parameters =
      embeddings + head + positions + 2 * width + c.layers * (vectors + 4 * width * width + 2 * width * inner);
  const auto packed = [dtype](std::int64_t in, std::int64_t out) { return Packed::bytes(dtype, in, out); };
  s.weight_bytes =
      packed(width, c.vocab) * (c.tied_head ? 1 : 2) + static_cast<std::size_t>(positions + 2 * width) * sizeof(T) +
      static_cast<std::size_t>(c.layers) * (static_cast<std::size_t>(vectors) * sizeof(T) + packed(width, 3 * width) +
                                            packed(width, width) + packed(width, inner) + packed(inner, width));
  s.workspace_bytes = Activations<T>(c, dtype, rows, nullptr).bytes;
  s.cache_spec = cache_spec_of(c, kCodec<T>);
  return s;
}

}  // namespace

Sizes gpt2_sizes(const ModelConfig& config, DType dtype, int rows) {
  return dtype == DType::f64 ? sizes_as<double>(config, dtype, rows) : sizes_as<float>(config, dtype, rows);
}

Result<std::unique_ptr<Model>> load_gpt2(const ModelConfig& config, const weights::Source& source,
                                         const std::string& prefix, DType dtype,
                                         const std::function<bool(double)>& progress) {
  return load_family<Gpt2>(config, source, prefix, dtype, progress);
}

}  // namespace stet::model
