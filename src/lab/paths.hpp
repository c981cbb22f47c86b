// Ways to the same logits. A schedule says how sequences go through a cache; running it gives the logits of every
// position and a record of what really happened.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/loaded.hpp"
#include "lab/wrap.hpp"
#include "model/model.hpp"

namespace stet::lab {

/// One thing done to the cache: rows appended to sequences in one step, or one sequence truncated.
struct Action {
  struct Part {
    std::size_t sequence = 0;
    std::vector<TokenId> ids;
    bool keep = true;  // whether the logits of these rows belong to the result
  };
  std::vector<Part> append;
  struct Cut {
    std::size_t sequence = 0;
    Pos len = 0;
  };
  std::optional<Cut> truncate;
  bool last_row_only = false;  // logits of the last row of each part only
};

struct Schedule {
  std::vector<Pos> lengths;  // of the sequences at their longest
  std::vector<Action> actions;
};

using Ids = std::vector<TokenId>;

Schedule in_chunks(const Ids& ids, Pos chunk);             // chunk >= ids.size(): at once
Schedule from_scratch(const Ids& ids);                     // for each position the whole prefix anew
Schedule with_detours(const Ids& ids, const Ids& others);  // wrong turns, truncated and overwritten
Schedule ragged(const std::vector<Ids>& sequences,
                Pos chunk);  // together: prompts in chunks, then one token a step each

/// How a path is run.
struct Conditions {
  int threads = 1;
  const kernels::Target* target = &kernels::targets().front();
  bool poison = true;
  std::optional<Plant> plant;
  Pos plant_position = 1;
};

/// What came out: raw elements of the model's dtype, sequence after sequence, position after position; or ids.
struct Outcome {
  std::vector<std::byte> elements;
  std::size_t element_bytes = 4;
  std::string record;
};

/// Stop is asked between steps; Code::interrupted.
using KeepGoing = std::function<bool()>;

Result<Outcome> run(const model::Model& model, const Schedule& schedule, const Conditions& conditions,
                    const KeepGoing& go);

/// Token ids that the engine's own step loop makes, cached or from scratch.
Result<Outcome> generate(const engine::Loaded& loaded, const Ids& prompt, int n, const SamplingParams& sampling,
                         bool recompute, const Conditions& conditions, const KeepGoing& go);

}  // namespace stet::lab
