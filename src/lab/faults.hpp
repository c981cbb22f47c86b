// The faults of `stet break`, each of them one that engines had: caches that pass everything on but one thing. Model,
// engine and kernels cannot tell.
#pragma once

#include <functional>

#include "lab/paths.hpp"
#include "lab/wrap.hpp"

namespace stet::lab {

/// What a step says of a slice's first position, given the true one.
using Told = std::function<Pos(const Slice&)>;

/// A step has one source of positions (Step::slices), which a model reads twice: for its embedding or rotary phases,
/// and then, layer by layer, for the causal mask. The two faults of the first two lines are only possible where these
/// are two counters, so the wrapped step tells `model` at first, and `mask` from the first view on. Either may be
/// empty: the truth.
Wrap tell(Told model, Told mask);

/// Every call numbers its tokens from 0, in the embedding (or the rotary phases) alone; the mask is right.
Wrap positions_restart();

/// The mask of n new tokens is the top left of the square one: the i-th sees keys 0 to i, and in decode key 0 alone.
Wrap square_mask();

/// Rows beyond `limit` are dropped from the front (the cache's windows do that), and every new one gets the last
/// position that there is; those that stay keep the positions that they were stored with.
Wrap naive_slide(Pos limit);

/// After a truncation what lay behind it is seen on, until new rows have taken its place: the view that was made
/// before. For caches whose cells stay in place and which are not poisoned.
Wrap stale_tail();

/// Queries see the rows of their own step as they were computed, not as they are stored. Nothing else changes for
/// codecs without a scale, whose stored rows are values of the arithmetic; of others attention reads dequantised rows.
/// `stored`: the same, cured.
Wrap fresh_rows(bool stored = false);

/// A fork at all but the last of a sequence's rows has them all; its owner goes on as if it had not.
Wrap full_hit_off_by_one();

/// Rows written where rows were cut off keep the scales of those.
Wrap forgotten_scales();

/// Several sequences as a rectangle: the shorter prompts are filled up with rows of `pad`, which are stored like all
/// others, on the right (and the logits of the prompt are those of the last row) or on the left. Nothing is masked.
enum class Padding : std::uint8_t { right, left };
Batching padded(Padding side, TokenId pad);

/// A prompt filled up to `longest` rows.
Ids fill_up(Padding side, TokenId pad, Ids prompt, Pos longest);

}  // namespace stet::lab
