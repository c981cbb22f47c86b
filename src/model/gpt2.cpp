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
#include <numeric>
#include <vector>

#include "kernels/run.hpp"
#include "model/model.hpp"

namespace stet::model {
namespace {

using kernels::Attend;
using kernels::LayerNorm;
using kernels::Matmul;
using kernels::Packed;

template <class T>
constexpr DType kDType = sizeof(T) == 8 ? DType::f64 : DType::f32;
template <class T>
constexpr Codec kCodec = sizeof(T) == 8 ? Codec::f64 : Codec::f32;

template <class T>
struct Norm {
  std::vector<T> gain, bias;
};

template <class T>
struct Linear {
  Packed<T> weight;
  std::vector<T> bias;
};

template <class T>
struct Layer {
  Norm<T> norm_1, norm_2;
  Linear<T> qkv, attention_out, up, down;
};

// The activations of a step, carved out of one workspace: the residual stream, what a sub-layer reads and writes, and
// the widest intermediate, which q|k|v and the MLP take in turn.
template <class T>
struct Activations {
  std::size_t width, wide;
  T *x, *h, *wide_rows;

  Activations(const ModelConfig& c, int rows, base::Buffer* workspace)
      : width(static_cast<std::size_t>(c.width)), wide(static_cast<std::size_t>(std::max(3 * c.width, c.inner))) {
    const auto n = static_cast<std::size_t>(rows);
    T* base = workspace == nullptr ? nullptr : workspace->as<T>();
    x = base;
    h = base + stride(n * width);
    wide_rows = base + 2 * stride(n * width);
  }
  std::size_t bytes(int rows) const {
    const auto n = static_cast<std::size_t>(rows);
    return (2 * stride(n * width) + stride(n * wide)) * sizeof(T);
  }
  static std::size_t stride(std::size_t elements) { return base::align_up(elements * sizeof(T)) / sizeof(T); }
};

template <class T>
class Gpt2 final : public Model {
 public:
  explicit Gpt2(ModelConfig config) : config_(std::move(config)) {}

  Result<void> load(const weights::Source& source, const std::string& prefix,
                    const std::function<bool(double)>& progress);

  const ModelConfig& config() const noexcept override { return config_; }
  DType dtype() const noexcept override { return kDType<T>; }
  CacheSpec cache_spec() const override { return sizes(config_, kDType<T>, 1).cache_spec; }
  std::size_t weight_bytes() const noexcept override { return sizes(config_, kDType<T>, 1).weight_bytes; }
  std::size_t workspace_bytes(int rows) const noexcept override {
    return Activations<T>(config_, rows, nullptr).bytes(rows);
  }

  Result<void> forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, LogitsOut out,
                       base::Buffer& workspace) const override;

 private:
  Result<void> embed(const kernels::Compute& on, std::span<const Slice> slices, std::span<const TokenId> ids,
                     T* x) const;
  void attention(const kernels::Compute& on, Step& step, int layer, int rows, const Activations<T>& a) const;
  void mlp(const kernels::Compute& on, int layer, int rows, const Activations<T>& a) const;
  void norm(const kernels::Compute& on, const Norm<T>& norm, const T* x, int rows, T* y) const;
  void linear(const kernels::Compute& on, const Linear<T>& linear, const T* x, std::size_t x_stride, int rows,
              T* y) const;
  const Packed<T>& head() const { return config_.tied_head ? token_embedding_ : head_; }

  ModelConfig config_;
  Packed<T> token_embedding_;  // [width, vocab] panels: a tied head's weights and the embedding's rows at once
  std::vector<T> position_embedding_;
  std::vector<Layer<T>> layers_;
  Norm<T> norm_f_;
  Packed<T> head_;  // empty when tied
};

template <class T>
Result<void> Gpt2<T>::forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, LogitsOut out,
                              base::Buffer& workspace) const {
  const int rows = static_cast<int>(ids.size());
  const Activations<T> a(config_, rows, &workspace);
  if (auto ok = embed(on, step.slices(), ids, a.x); !ok) return ok;
  for (int layer = 0; layer < config_.layers; ++layer) {
    attention(on, step, layer, rows, a);
    mlp(on, layer, rows, a);
  }
  // Only the rows whose logits are wanted go through the last norm and the head, the largest matrix of a small model.
  const int wanted = static_cast<int>(out.rows.size());
  for (int i = 0; i < wanted; ++i) {
    std::copy_n(a.x + static_cast<std::size_t>(out.rows[static_cast<std::size_t>(i)]) * a.width, a.width,
                a.h + static_cast<std::size_t>(i) * a.width);
  }
  norm(on, norm_f_, a.h, wanted, a.h);
  kernels::run_matmul(on,
                      Matmul<T>{a.h, a.width, &head(), nullptr, reinterpret_cast<T*>(out.data),
                                static_cast<std::size_t>(config_.vocab)},
                      wanted);
  return {};
}

template <class T>
Result<void> Gpt2<T>::embed(const kernels::Compute& on, std::span<const Slice> slices, std::span<const TokenId> ids,
                            T* x) const {
  const auto width = static_cast<std::size_t>(config_.width);
  for (const Slice& slice : slices) {
    if (slice.first + slice.tokens > config_.context) {
      return fail(Code::invalid_argument, fmt::format("position {} is beyond the model's context of {}",
                                                      slice.first + slice.tokens - 1, config_.context));
    }
    for (int t = 0; t < slice.tokens; ++t) {
      const auto row = static_cast<std::size_t>(slice.row + t);
      if (ids[row] < 0 || ids[row] >= config_.vocab) {
        return fail(Code::invalid_argument,
                    fmt::format("token id {} is not in the vocabulary of {}", ids[row], config_.vocab));
      }
      const std::span<T> to(x + row * width, width);
      token_embedding_.get_output(ids[row], to);
      on.target->table<T>().add({position_embedding_.data() + static_cast<std::size_t>(slice.first + t) * width, width},
                                to);
    }
  }
  return {};
}

template <class T>
void Gpt2<T>::attention(const kernels::Compute& on, Step& step, int layer, int rows, const Activations<T>& a) const {
  const Layer<T>& w = layers_[static_cast<std::size_t>(layer)];
  norm(on, w.norm_1, a.x, rows, a.h);
  T* qkv = a.wide_rows;  // a row is q | k | v, each `width` long
  linear(on, w.qkv, a.h, a.width, rows, qkv);

  const std::size_t stride = 3 * a.width;
  const auto rows_of = [&](const T* first) {
    return Rows{kDType<T>, reinterpret_cast<const std::byte*>(first), stride * sizeof(T)};
  };
  on.pool->run(static_cast<std::size_t>(config_.kv_heads), [&](std::size_t head) {
    const int h = static_cast<int>(head);
    step.write(layer, {h, h + 1}, rows_of(qkv + a.width), rows_of(qkv + 2 * a.width));
  });

  T scale = config_.scale_attention ? T(1) / std::sqrt(static_cast<T>(config_.head_dim)) : T(1);
  if (config_.scale_attention_by_layer) scale = scale / static_cast<T>(layer + 1);
  std::vector<Attend<T>> slices;
  const auto step_slices = step.slices();
  for (std::size_t s = 0; s < step_slices.size(); ++s) {
    const auto row = static_cast<std::size_t>(step_slices[s].row);
    slices.push_back({step.view(layer, static_cast<int>(s)), step_slices[s].first, step_slices[s].tokens, config_.heads,
                      scale, qkv + row * stride, stride, a.h + row * a.width, a.width});
  }
  kernels::run_attend<T>(on, slices);

  T* projected = a.wide_rows;  // q, k and v are no longer needed
  linear(on, w.attention_out, a.h, a.width, rows, projected);
  const std::size_t n = static_cast<std::size_t>(rows) * a.width;
  on.target->table<T>().add({projected, n}, {a.x, n});
}

template <class T>
void Gpt2<T>::mlp(const kernels::Compute& on, int layer, int rows, const Activations<T>& a) const {
  const Layer<T>& w = layers_[static_cast<std::size_t>(layer)];
  const auto inner = static_cast<std::size_t>(config_.inner);
  norm(on, w.norm_2, a.x, rows, a.h);
  linear(on, w.up, a.h, a.width, rows, a.wide_rows);
  kernels::run_activate<T>(on, config_.activation, {a.wide_rows, static_cast<std::size_t>(rows) * inner});
  linear(on, w.down, a.wide_rows, inner, rows, a.h);
  const std::size_t n = static_cast<std::size_t>(rows) * a.width;
  on.target->table<T>().add({a.h, n}, {a.x, n});
}

template <class T>
void Gpt2<T>::norm(const kernels::Compute& on, const Norm<T>& norm, const T* x, int rows, T* y) const {
  const auto width = static_cast<std::size_t>(config_.width);
  kernels::run_layer_norm(on,
                          LayerNorm<T>{x, width, norm.gain.data(), norm.bias.data(),
                                       static_cast<T>(config_.norm_epsilon), config_.width, y, width},
                          rows);
}

template <class T>
void Gpt2<T>::linear(const kernels::Compute& on, const Linear<T>& linear, const T* x, std::size_t x_stride, int rows,
                     T* y) const {
  const auto out = static_cast<std::size_t>(linear.weight.out());
  kernels::run_matmul(on, Matmul<T>{x, x_stride, &linear.weight, linear.bias.data(), y, out}, rows);
}

// ---- Loading

// Reads tensors by name and keeps count for the progress callback.
template <class T>
class Loader {
 public:
  Loader(const weights::Source& source, std::string prefix, const std::function<bool(double)>& progress)
      : source_(source), prefix_(std::move(prefix)), progress_(progress) {
    for (const auto& tensor : source.tensors()) total_ += static_cast<double>(tensor.elements());
  }

  Result<void> vector(const std::string& name, std::int64_t size, std::vector<T>& to) {
    to.resize(static_cast<std::size_t>(size));
    return read(name, 0, to);
  }

  // A [in, out] matrix, as Conv1D stores it.
  Result<void> conv1d(const std::string& name, int in, int out, Linear<T>& to) {
    if (auto ok = vector(name + ".bias", out, to.bias); !ok) return ok;
    auto packed = Packed<T>::allocate(in, out);
    if (!packed) return named(name + ".weight", packed);
    to.weight = std::move(*packed);
    return by_rows(name + ".weight", in, out, [&](int k, std::span<const T> row) { to.weight.set_input(k, row); });
  }

  // A [rows, width] matrix whose rows are outputs: embeddings and heads.
  Result<void> outputs(const std::string& name, int rows, int width, Packed<T>& to) {
    auto packed = Packed<T>::allocate(width, rows);
    if (!packed) return named(name, packed);
    to = std::move(*packed);
    return by_rows(name, rows, width, [&](int n, std::span<const T> row) { to.set_output(n, row); });
  }

  Result<void> norm(const std::string& name, int width, Norm<T>& to) {
    if (auto ok = vector(name + ".weight", width, to.gain); !ok) return ok;
    return vector(name + ".bias", width, to.bias);
  }

 private:
  Result<void> read(const std::string& name, std::int64_t begin, std::span<T> out) {
    // lm_head lies beside the transformer, not in it.
    const weights::TensorInfo* tensor = source_.find(name.starts_with("lm_head") ? name : prefix_ + name);
    if (tensor == nullptr) return fail(Code::not_found, fmt::format("tensor {} is missing", name));
    if (auto ok = source_.read(*tensor, begin, out); !ok) return ok;
    done_ += static_cast<double>(out.size());
    if (progress_ && !progress_(std::min(1.0, done_ / total_)))
      return fail(Code::interrupted, "loading was interrupted");
    return {};
  }

  template <class Set>
  Result<void> by_rows(const std::string& name, int rows, int columns, const Set& set) {
    const int at_once = std::max(1, (1 << 18) / std::max(1, columns));  // about a megabyte between calls of the source
    std::vector<T> staging(static_cast<std::size_t>(std::min(rows, at_once)) * static_cast<std::size_t>(columns));
    for (int r = 0; r < rows; r += at_once) {
      const int n = std::min(at_once, rows - r);
      const std::span<T> some(staging.data(), static_cast<std::size_t>(n) * static_cast<std::size_t>(columns));
      if (auto ok = read(name, static_cast<std::int64_t>(r) * columns, some); !ok) return ok;
      for (int i = 0; i < n; ++i) {
        set(r + i, some.subspan(static_cast<std::size_t>(i) * static_cast<std::size_t>(columns),
                                static_cast<std::size_t>(columns)));
      }
    }
    return {};
  }

  template <class R>
  static Failure named(const std::string& name, const Result<R>& r) {
    return fail(r.error().code, fmt::format("tensor {}: {}", name, r.error().message));
  }

  const weights::Source& source_;
  std::string prefix_;
  const std::function<bool(double)>& progress_;
  double total_ = 0, done_ = 0;
};

template <class T>
Result<void> Gpt2<T>::load(const weights::Source& source, const std::string& prefix,
                           const std::function<bool(double)>& progress) {
  const ModelConfig& c = config_;
  Loader<T> in(source, prefix, progress);
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
Sizes sizes_as(const ModelConfig& c, int rows) {
  Sizes s;
  const std::int64_t width = c.width, inner = c.inner, embeddings = c.vocab * width, positions = c.context * width;
  const std::int64_t vectors = 4 * width + 3 * width + width + inner + width;  // of a layer: two norms, four biases
  const std::int64_t head = c.tied_head ? 0 : embeddings;
  s.parameters =
      embeddings + head + positions + 2 * width + c.layers * (vectors + 4 * width * width + 2 * width * inner);
  const auto packed = [](std::int64_t in, std::int64_t out) { return Packed<T>::bytes(in, out); };
  s.weight_bytes =
      packed(width, c.vocab) * (c.tied_head ? 1 : 2) + static_cast<std::size_t>(positions + 2 * width) * sizeof(T) +
      static_cast<std::size_t>(c.layers) * (static_cast<std::size_t>(vectors) * sizeof(T) + packed(width, 3 * width) +
                                            packed(width, width) + packed(width, inner) + packed(inner, width));
  s.workspace_bytes = Activations<T>(c, rows, nullptr).bytes(rows);
  LayerSpec layer;
  layer.kv_heads = c.kv_heads;
  layer.k_dim = layer.v_dim = c.head_dim;
  layer.k = layer.v = kCodec<T>;
  s.cache_spec.layers.assign(static_cast<std::size_t>(c.layers), layer);
  return s;
}

template <class T>
Result<std::unique_ptr<Model>> loaded(std::unique_ptr<Gpt2<T>> model, const weights::Source& source,
                                      const std::string& prefix, const std::function<bool(double)>& progress) {
  if (auto ok = model->load(source, prefix, progress); !ok) return pass(ok);
  return model;
}

}  // namespace

Sizes sizes(const ModelConfig& config, DType dtype, int rows) {
  return dtype == DType::f64 ? sizes_as<double>(config, rows) : sizes_as<float>(config, rows);
}

Result<std::unique_ptr<Model>> load_gpt2(const ModelConfig& config, const weights::Source& source,
                                         const std::string& prefix, DType dtype,
                                         const std::function<bool(double)>& progress) {
  if (dtype == DType::f64) return loaded(std::make_unique<Gpt2<double>>(config), source, prefix, progress);
  return loaded(std::make_unique<Gpt2<float>>(config), source, prefix, progress);
}

}  // namespace stet::model
