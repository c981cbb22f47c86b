// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the reference is openai/gpt-2
// model.py):
//
//   x = wte[id] + wpe[position]
//   for each layer:  x += attention(layer_norm(x)) ;  x += mlp(layer_norm(x))
//   logits = layer_norm(x) . head
//
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <new>
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
  Packed weight;
  std::vector<T> bias;
};

// The matmul of a linear layer; x rows are x_stride apart, y's as wide as the layer's output.
template <class T>
Matmul<T> op(const Linear<T>& linear, const T* x, std::size_t x_stride, T* y) {
  return {x, x_stride, &linear.weight, linear.bias.data(), y, static_cast<std::size_t>(linear.weight.out())};
}

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
  CacheSpec cache_spec() const override { return sizes(config_, weights_, 1).cache_spec; }
  std::size_t weight_bytes() const noexcept override { return sizes(config_, weights_, 1).weight_bytes; }
  std::size_t workspace_bytes(int rows) const noexcept override {
    return Activations<T>(config_, weights_, rows, nullptr).bytes;
  }

  Result<void> forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, LogitsOut out,
                       base::Buffer& workspace) const override;

 private:
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
  const Matmul<T> op{
      a.h, a.width, &head(), nullptr, reinterpret_cast<T*>(out.data), static_cast<std::size_t>(config_.vocab)};
  return linear(on, op, wanted, a, "the head");
}

template <class T>
Result<void> Gpt2<T>::embed(const kernels::Compute& on, std::span<const Slice> slices, std::span<const TokenId> ids,
                            T* x) const {
  const auto width = static_cast<std::size_t>(config_.width);
  std::vector<Pos> positions(ids.size());
  for (const Slice& slice : slices) {
    if (slice.first + slice.tokens > config_.context) {
      return fail(Code::invalid_argument, fmt::format("position {} is beyond the model's context of {}",
                                                      slice.first + slice.tokens - 1, config_.context));
    }
    std::iota(positions.begin() + slice.row, positions.begin() + slice.row + slice.tokens, slice.first);
  }
  for (const TokenId id : ids) {
    if (id < 0 || id >= config_.vocab) {
      return fail(Code::invalid_argument, fmt::format("token id {} is not in the vocabulary of {}", id, config_.vocab));
    }
  }
  on.pool->run(ids.size(), [&](std::size_t row) {
    const std::span<T> to(x + row * width, width);
    token_embedding_.get_output(ids[row], to);
    on.target->table<T>().add({position_embedding_.data() + static_cast<std::size_t>(positions[row]) * width, width},
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
  return fail(Code::unsupported, fmt::format("an activation before {} is not finite, which {} weights cannot work with",
                                             what, name_of(weights_)));
}

// ---- Loading

// Reads tensors by name, on all CPUs, and keeps count for the progress callback.
template <class T>
class Loader {
 public:
  Loader(const weights::Source& source, std::string prefix, DType weights, const std::function<bool(double)>& progress)
      : source_(source),
        prefix_(std::move(prefix)),
        weights_(weights),
        progress_(progress),
        pool_(std::min(base::available_cpus(), kMostThreads)),
        staging_(static_cast<std::size_t>(pool_.threads())) {
    for (const auto& tensor : source.tensors()) total_ += static_cast<double>(tensor.elements());
  }

  Result<void> vector(const std::string& name, std::int64_t size, std::vector<T>& to) {
    to.resize(static_cast<std::size_t>(size));
    return read(name, 0, to);
  }

  // A [in, out] matrix, as Conv1D stores it.
  Result<void> conv1d(const std::string& name, int in, int out, Linear<T>& to) {
    if (auto ok = vector(name + ".bias", out, to.bias); !ok) return ok;
    auto packed = Packed::allocate(weights_, in, out);
    if (!packed) return named(name + ".weight", packed);
    to.weight = std::move(*packed);
    return by_rows(name + ".weight", in, out, [&](int k, int count, const std::vector<T>& rows) {
      to.weight.template set_inputs<T>(k, count, rows);
    });
  }

  // A [rows, width] matrix whose rows are outputs: embeddings and heads.
  Result<void> outputs(const std::string& name, int rows, int width, Packed& to) {
    auto packed = Packed::allocate(weights_, width, rows);
    if (!packed) return named(name, packed);
    to = std::move(*packed);
    return by_rows(name, rows, width, [&](int first, int count, const std::vector<T>& values) {
      to.template set_outputs<T>(first, count, values);
    });
  }

  Result<void> norm(const std::string& name, int width, Norm<T>& to) {
    if (auto ok = vector(name + ".weight", width, to.gain); !ok) return ok;
    return vector(name + ".bias", width, to.bias);
  }

 private:
  static constexpr int kMostThreads = 8;  // more only wait for memory

  Result<void> read(const std::string& name, std::int64_t begin, std::span<T> out) {
    // lm_head lies beside the transformer, not in it.
    const weights::TensorInfo* tensor = source_.find(name.starts_with("lm_head") ? name : prefix_ + name);
    if (tensor == nullptr) return fail(Code::not_found, fmt::format("tensor {} is missing", name));
    if (auto ok = source_.read(*tensor, begin, out); !ok) return ok;
    const std::scoped_lock lock(mutex_);
    done_ += static_cast<double>(out.size());
    if (progress_ && !progress_(std::min(1.0, done_ / total_))) {
      return fail(Code::interrupted, "loading was interrupted");
    }
    return {};
  }

  // set(first, count, values) for all rows of a matrix, about a megabyte at a time, from any thread.
  template <class Set>
  Result<void> by_rows(const std::string& name, int rows, int columns, const Set& set) {
    constexpr int kWhole = 64;  // a multiple of every group size and panel, so that no two threads touch one
    const int at_once = std::max(kWhole, (1 << 18) / columns / kWhole * kWhole);
    const int blocks = rows / at_once + (rows % at_once != 0 ? 1 : 0);
    std::atomic<int> next{0};
    Result<void> result;
    pool_.run(staging_.size(), [&](std::size_t thread) {
      auto& staging = staging_[thread];
      for (int b; (b = next.fetch_add(1)) < blocks;) {
        const int r = b * at_once, n = std::min(at_once, rows - r);
        try {
          staging.resize(static_cast<std::size_t>(n) * static_cast<std::size_t>(columns));
        } catch (const std::bad_alloc&) {
          const std::scoped_lock lock(mutex_);
          result = fail(Code::capacity, fmt::format("tensor {}: the system refused memory to read it", name));
          next.store(blocks);
          return;
        }
        if (auto ok = read(name, static_cast<std::int64_t>(r) * columns, staging); !ok) {
          const std::scoped_lock lock(mutex_);
          result = ok;
          next.store(blocks);
          return;
        }
        if (kernels::group_size(weights_) > 1 && !all_finite(staging)) {
          const std::scoped_lock lock(mutex_);
          result = fail(Code::unsupported, fmt::format("tensor {} has a value that is not finite, which {} cannot hold",
                                                       name, name_of(weights_)));
          next.store(blocks);
          return;
        }
        set(r, n, staging);
      }
    });
    return result;
  }

  static bool all_finite(const std::vector<T>& values) {
    return std::all_of(values.begin(), values.end(),
                       [](T x) { return std::abs(x) <= std::numeric_limits<float>::max(); });
  }

  template <class R>
  static Failure named(const std::string& name, const Result<R>& r) {
    return fail(r.error().code, fmt::format("tensor {}: {}", name, r.error().message));
  }

  const weights::Source& source_;
  std::string prefix_;
  DType weights_;
  const std::function<bool(double)>& progress_;
  base::ThreadPool pool_;
  std::vector<std::vector<T>> staging_;  // of each thread
  std::mutex mutex_;                     // guards done_ and the callback
  double total_ = 0, done_ = 0;
};

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
  return dtype == DType::f64 ? sizes_as<double>(config, dtype, rows) : sizes_as<float>(config, dtype, rows);
}

Result<std::unique_ptr<Model>> load_gpt2(const ModelConfig& config, const weights::Source& source,
                                         const std::string& prefix, DType dtype,
                                         const std::function<bool(double)>& progress) {
  if (arithmetic_of(dtype) == DType::f64)
    return loaded(std::make_unique<Gpt2<double>>(config, dtype), source, prefix, progress);
  return loaded(std::make_unique<Gpt2<float>>(config, dtype), source, prefix, progress);
}

}  // namespace stet::model
