// How two models, or one model on two caches, predict the same token: of one position, and summed over a text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "stet/types.hpp"

namespace stet::lab {

/// One position; logarithms are natural.
struct Score {
  double nll_reference = 0, nll = 0, kl = 0, distance = 0, largest = 0;
  bool same_top = false, finite = false;  // if not finite, nothing else is set
};

/// Of a row of logits of the reference and one of the other; `next` is the token that came. In double, by log-softmax.
Score score(std::vector<double> reference, std::vector<double> other, std::size_t next);

/// Sums over positions, in the order of the text.
struct Totals {
  double nll_reference = 0, nll = 0, kl = 0, distance = 0, largest = 0;
  Pos scored = 0, same_top = 0;

  void add(const Score& s) {
    nll_reference += s.nll_reference;
    nll += s.nll;
    kl += s.kl;
    distance = std::max(distance, s.distance);
    largest = std::max(largest, s.largest);
    ++scored;
    same_top += s.same_top ? 1 : 0;
  }
};

}  // namespace stet::lab
