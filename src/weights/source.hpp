// Where a model's numbers come from: a checkpoint's files, or a generator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::weights {

struct TensorInfo {
  std::string name;
  DType type = DType::f32;
  std::vector<std::int64_t> shape;  // row-major; empty for a scalar
  std::int64_t elements() const noexcept;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// "[3, 4]"
std::string to_string(const std::vector<std::int64_t>& shape);

/// A set of named tensors. Reads may come from several threads at a time.
class Source {
 public:
  virtual ~Source() = default;

  /// All tensors, sorted by name.
  virtual std::span<const TensorInfo> tensors() const noexcept = 0;
  const TensorInfo* find(std::string_view name) const noexcept;

  /// Elements [begin, begin + out.size()) of a tensor in row-major order, widened or rounded (f64 to f32: to nearest even)
  /// to the type of `out`. Errors name the tensor; `out` is then unspecified.
  virtual Result<void> read(const TensorInfo& tensor, std::int64_t begin, std::span<float> out) const = 0;
  virtual Result<void> read(const TensorInfo& tensor, std::int64_t begin, std::span<double> out) const = 0;
};

}  // namespace stet::weights
