#include "weights/source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "weights/printable.hpp"

namespace stet::weights {

std::int64_t TensorInfo::elements() const noexcept {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

const TensorInfo* Source::find(std::string_view name) const noexcept {
  const auto all = tensors();
  const auto at = std::lower_bound(all.begin(), all.end(), name,
                                   [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  return at != all.end() && at->name == name ? &*at : nullptr;
}

Result<std::size_t> Source::locate(std::string_view name, std::int64_t begin, std::size_t count) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) return fail(Code::not_found, fmt::format("there is no tensor {}", printable(name)));
  if (!tensor->readable()) {
    return fail(Code::unsupported, fmt::format("tensor {} is of type {}, which cannot be read as weights",
                                               printable(name), tensor->other_type));
  }
  const std::int64_t elements = tensor->elements();
  if (begin < 0 || begin > elements || count > static_cast<std::uint64_t>(elements - begin)) {
    return fail(Code::invalid_argument, fmt::format("tensor {}: {} elements from {} asked for, it has {}",
                                                    printable(name), count, begin, elements));
  }
  return static_cast<std::size_t>(tensor - tensors().data());
}

}  // namespace stet::weights
