// What the model families share: their layers' parts, and how weights get into them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.hpp"
#include "core/config.hpp"
#include "kernels/packed.hpp"
#include "kernels/run.hpp"
#include "model/model.hpp"
#include "stet/cache.hpp"
#include "weights/source.hpp"

namespace stet::model {

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

// Feed tensors to a digest, each after its type and shape, so that the borders between them count.
void hash(base::Hasher& hasher, const Packed& matrix);
void hash(base::Hasher& hasher, const std::vector<float>& vector);
void hash(base::Hasher& hasher, const std::vector<double>& vector);

template <class A, class B, class... More>
void hash(base::Hasher& hasher, const A& first, const B& second, const More&... more) {
  hash(hasher, first);
  hash(hasher, second, more...);
}

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

  Result<void> vector_at(const std::string& name, std::span<T> to) { return read(name, 0, to); }

  // A [in, out] matrix, as Conv1D stores it.
  Result<void> conv1d(const std::string& name, int in, int out, Linear<T>& to) {
    if (auto ok = vector(name + ".bias", out, to.bias); !ok) return ok;
    if (auto ok = allocate(name + ".weight", in, out, to.weight); !ok) return ok;
    return by_rows(name + ".weight", in, out, [&](int k, int count, const std::vector<T>& rows) {
      to.weight.template set_inputs<T>(k, count, rows);
    });
  }

  // A [rows, width] matrix whose rows are outputs: embeddings, heads, and what torch.nn.Linear stores.
  Result<void> outputs(const std::string& name, int rows, int width, Packed& to) {
    if (auto ok = allocate(name, width, rows, to); !ok) return ok;
    return outputs_at(name, 0, rows, width, to);
  }

  Result<void> allocate(const std::string& name, int in, int out, Packed& to) {
    auto packed = Packed::allocate(weights_, in, out);
    if (!packed) return named(name, packed);
    to = std::move(*packed);
    return {};
  }

  // The same for outputs [begin, begin + rows) of a matrix that is there.
  Result<void> outputs_at(const std::string& name, int begin, int rows, int width, Packed& to) {
    return by_rows(name, rows, width, [&](int first, int count, const std::vector<T>& values) {
      to.template set_outputs<T>(begin + first, count, values);
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

/// The position of each row; Code::invalid_argument names a position beyond the context or an id beyond the vocabulary.
Result<std::vector<Pos>> check_inputs(const ModelConfig& config, std::span<const Slice> slices,
                                      std::span<const TokenId> ids);

/// What a step of `config` keeps in its cache, in the type of the arithmetic.
CacheSpec cache_spec_of(const ModelConfig& config, Codec codec);

/// Loads a family's M<double> or M<float>, as the weights' type asks.
template <template <class> class M>
Result<std::unique_ptr<Model>> load_family(const ModelConfig& config, const weights::Source& source,
                                           const std::string& prefix, DType dtype,
                                           const std::function<bool(double)>& progress) {
  const auto loaded = [&](auto model) -> Result<std::unique_ptr<Model>> {
    if (auto ok = model->load(source, prefix, progress); !ok) return pass(ok);
    return model;
  };
  if (arithmetic_of(dtype) == DType::f64) return loaded(std::make_unique<M<double>>(config, dtype));
  return loaded(std::make_unique<M<float>>(config, dtype));
}

/// What a matmul says that met an activation which its weights' type cannot express.
Failure not_finite(const char* what, DType weights);

}  // namespace stet::model
