// Angles of rotary positions, by rule 3 of docs/numerics.md: no libm, so they are the same bits on every machine.
#pragma once

#include <span>
#include <vector>

#include "core/config.hpp"

namespace stet::kernels {

/// sin and cos of x, |x| < 2^20, each within 2 units in the last place.
struct SinCos {
  double sin, cos;
};
SinCos sin_cos(double x) noexcept;

/// Natural logarithm of a positive normal number, within 2 units in the last place.
double log(double x) noexcept;

/// Turns a position: theta^(-2 i / head_dim) for i < head_dim / 2, scaled as `rope` says. head_dim is even.
/// Linear scaling: S. Chen et al. 2023. llama3: long wavelengths divided by `factor`, short ones kept, and in between a
/// mix by how often the wavelength fits the original context, as Meta's and Hugging Face's code has it.
std::vector<double> rope_frequencies(const Rope& rope, int head_dim);

/// cos and sin of position x frequencies[i], computed in double and rounded once.
template <class T>
void rope_angles(std::span<const double> frequencies, Pos position, T* cos, T* sin) noexcept;

}  // namespace stet::kernels
