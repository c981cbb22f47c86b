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
  /// The file's name of a type that cannot be read as numbers ("U8", "BOOL"); `type` then says nothing. Such tensors
  /// are listed, because old GPT-2 files carry masks that nobody needs; reading one is an error.
  std::string_view other_type = {};

  std::int64_t elements() const noexcept;
  bool readable() const noexcept { return other_type.empty(); }
  /// "f32", "U8", ...
  std::string_view type_name() const noexcept { return readable() ? std::string_view(name_of(type)) : other_type; }
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// "[3, 4]"
std::string to_string(const std::vector<std::int64_t>& shape);

/// A set of named tensors. Reads may come from several threads at a time.
class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  /// All tensors, sorted by name.
  virtual std::span<const TensorInfo> tensors() const noexcept = 0;
  const TensorInfo* find(std::string_view name) const noexcept;

  /// Elements [begin, begin + out.size()) of a tensor in row-major order, widened or rounded (f64 to f32: to nearest
  /// even) to the type of `out`. The tensor is found by its name. Errors name it; `out` is then unspecified.
  virtual Result<void> read(const TensorInfo& tensor, std::int64_t begin, std::span<float> out) const = 0;
  virtual Result<void> read(const TensorInfo& tensor, std::int64_t begin, std::span<double> out) const = 0;

 protected:
  /// The index in tensors() of the tensor of that name, when it is readable and [begin, begin + count) lies within it.
  Result<std::size_t> locate(std::string_view name, std::int64_t begin, std::size_t count) const;
};

}  // namespace stet::weights
