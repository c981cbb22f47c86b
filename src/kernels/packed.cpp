#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/kernels.hpp"

namespace stet::kernels {

template <class T>
std::size_t Packed<T>::bytes(std::int64_t in, std::int64_t out) noexcept {
  return static_cast<std::size_t>((out + kPanel<T> - 1) / kPanel<T>) * static_cast<std::size_t>(in) * kPanel<T> *
         sizeof(T);
}

template <class T>
Result<Packed<T>> Packed<T>::allocate(int in, int out) {
  Packed packed;
  packed.in_ = in;
  packed.out_ = out;
  auto buffer = base::Buffer::allocate(bytes(in, out));
  if (!buffer) return pass(buffer);
  packed.data_ = std::move(*buffer);
  // Only the padding needs zeros; everything else is set by the loader.
  if (out % kPanel<T> != 0 && out > 0) {
    const std::size_t last = bytes(in, out) / static_cast<std::size_t>(packed.panels());
    std::memset(packed.data_.data() + packed.data_.size() - last, 0, last);
  }
  return packed;
}

template <class T>
void Packed<T>::set_input(int k, std::span<const T> row) noexcept {
  for (int p = 0; p < panels(); ++p) {
    const int begin = p * kPanel<T>;
    const int n = std::min(kPanel<T>, out_ - begin);
    std::copy_n(row.data() + begin, n, data_.as<T>() + (static_cast<std::size_t>(p) * in_ + k) * kPanel<T>);
  }
}

template <class T>
void Packed<T>::set_output(int n, std::span<const T> column) noexcept {
  T* to = data_.as<T>() + static_cast<std::size_t>(n / kPanel<T>) * in_ * kPanel<T> + n % kPanel<T>;
  for (int k = 0; k < in_; ++k) to[static_cast<std::size_t>(k) * kPanel<T>] = column[k];
}

template <class T>
void Packed<T>::get_output(int n, std::span<T> column) const noexcept {
  const T* from = panel(n / kPanel<T>) + n % kPanel<T>;
  for (int k = 0; k < in_; ++k) column[k] = from[static_cast<std::size_t>(k) * kPanel<T>];
}

template class Packed<float>;
template class Packed<double>;

}  // namespace stet::kernels
