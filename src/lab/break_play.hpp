// How a text is made while a fault is in place: one sequence or a batch, with or without a cache, drafts that are taken
// back, a prompt that was seen before, and what lies past a limit.
#pragma once

#include <optional>
#include <vector>

#include "lab/faults.hpp"

namespace stet::lab {

struct Play {
  std::vector<Ids> prompts;        // one for each sequence
  int steps = 1;                   // new tokens of each
  CacheChoice cache;               // by default every row is kept
  Ids drafts;                      // appended before each new token but the first, and cut off again
  Pos stored = 0;                  // tokens of the first prompt that an earlier request has left in the cache
  bool recompute = false;          // each token from scratch over all before it
  Pos limit = 0;                   // tokens of the window that is recomputed for each token past it; 0: there is none
  Pos max_step = 0;                // the longest step, which windows hold beside what they see; 0: a whole sequence
  bool poison = true;              // slots without a row are NaN
  Wrap wrap;                       // the fault, if it is one of the cache
  std::optional<Padding> padding;  // the fault, if it is one of the batch
  TokenId pad = 0;
  SamplingParams sampling;
  int threads = 0;  // 0: as many as there are
};

/// What came of it, for each sequence: the ids chosen, and the logits that they were chosen by.
struct Played {
  std::vector<Ids> ids;
  std::vector<std::vector<std::byte>> logits;  // steps x vocab
  std::vector<double> seconds;                 // of each step, until its logits were there; the first reads the prompts
  CacheUsage usage;                            // of the cache, when all was done
  Pos evicted = 0;                             // rows of the first sequence that layer 0 then no longer had
};

/// `forced`: the ids that follow the prompts whatever the logits say, so that two plays can be compared step by step;
/// Played::ids are still those that the logits would choose. Errors as of Cache and Model; Code::interrupted.
Result<Played> play(const model::Model& model, const Play& play, const KeepGoing& go,
                    const std::vector<Ids>* forced = nullptr);

/// Step by step the largest distance of a logit, of the last sequences of two plays of one text; infinite where a logit
/// is not finite.
std::vector<double> distances(const model::Model& model, const Played& a, const Played& b);

/// The share of an id sequence's 4-grams that occurred before in it; 0 for fewer than two 4-grams.
double repetition(const Ids& ids);

}  // namespace stet::lab
