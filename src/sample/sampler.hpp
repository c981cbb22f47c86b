// From logits to the next token. Deterministic: the same logits, history, parameters and counter give the same id on
// every machine, so batching, preemption and retries cannot change a sampled text.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "stet/result.hpp"
#include "stet/sampling.hpp"
#include "stet/types.hpp"

namespace stet::sample {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept;

/// Uniform in [0, 1) with 53 random bits: the random number of one draw.
double uniform(std::uint64_t seed, std::uint64_t sequence, Pos position) noexcept;

/// Errors name the field, its value and its range: temperature finite and >= 0, top_k >= 0, top_p in (0, 1], min_p in
/// [0, 1], repetition_penalty finite and > 0.
Result<void> check(const SamplingParams& params);

/// The next id. `logits` are one row in f32 or f64; `history` is the prompt and what followed (for the repetition
/// penalty, which counts an id once); `sequence` and `position` (of the new token) key the random number.
///
/// Computed in double, for either type, as weights exp((logit - largest) / temperature), and drawn where the running
/// sum of weights passes uniform() x their total. Sums run over ascending ids when neither top-k nor top-p cuts, else
/// over descending logits; equal logits rank by ascending id everywhere, so at a border the lowest ids stay. A logit of
/// -inf is never drawn.
///
/// Code::invalid_argument: parameters that check() refuses; a NaN or +infinite logit, also one that the penalty made
/// (names the id); no finite logit; an id of the history that has no logit.
Result<TokenId> sample(std::span<const float> logits, std::span<const TokenId> history, const SamplingParams& params,
                       std::uint64_t sequence, Pos position);
Result<TokenId> sample(std::span<const double> logits, std::span<const TokenId> history, const SamplingParams& params,
                       std::uint64_t sequence, Pos position);

/// The id of the largest of one row's logits; of several alike the lowest. None may be NaN.
template <class T>
TokenId most_likely(std::span<const T> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace stet::sample
