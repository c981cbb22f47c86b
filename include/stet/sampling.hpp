// How the next token is chosen.
#pragma once

#include <cstdint>

namespace stet {

/// Applied in this order: repetition penalty, temperature, top-k, top-p, min-p, draw. Temperature 0 is greedy: the
/// largest logit after the penalty, ties to the lowest id, no random number drawn.
struct SamplingParams {
  double temperature = 0;
  int top_k = 0;     // keep the k largest; 0: all
  double top_p = 1;  // keep the smallest set of largest probabilities whose sum reaches top_p, in (0, 1]
  double min_p = 0;  // keep probabilities >= min_p x the largest, in [0, 1]
  double repetition_penalty =
      1;  // logits of seen ids: divided if positive, multiplied if negative (Keskar et al. 2019)
  std::uint64_t seed = 0;
};

}  // namespace stet
