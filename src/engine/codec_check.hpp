// Whether a cache in reduced codecs still predicts what the model does: outliers in a channel of the keys are enough
// for fluent text that is not the model's.
#pragma once

#include <span>

#include "engine/scheduler.hpp"

namespace stet::engine {

/// Reads `ids`, at most 128, through a small cache of `spec` and one of `plain`, and counts the positions whose most
/// likely token is the same. Fewer than 16 ids are first continued, greedily, by the plain cache. Steps have at most
/// `chunk` rows. Both caches are gone afterwards; errors are those of making them and of the model's forward.
Result<CodecCheck> check_codecs(const Bench& bench, const CacheSpec& plain, const CacheSpec& spec,
                                std::span<const TokenId> ids, int chunk);

}  // namespace stet::engine
