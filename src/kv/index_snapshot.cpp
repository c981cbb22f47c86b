#include "kv/index_snapshot.hpp"

#include <vector>

namespace stet::kv {

Result<void> save_index(const std::filesystem::path& path, const Identity& identity, const Cache& cache,
                        const PrefixIndex& index, const std::function<bool()>& stop) {
  std::vector<SaveSequence> sequences;
  for (const Parked& parked : index.parked()) sequences.push_back({parked.seq, parked.tokens, parked.salt});
  return save(path, identity, cache, sequences, stop);
}

Result<std::size_t> restore_index(const Snapshot& snapshot, const Identity& model, Cache& cache, PrefixIndex& index,
                                  Reencode reencode) {
  const auto saved = snapshot.sequences();
  if (auto ok = check_same(snapshot.identity(), model, snapshot.path().string()); !ok) {
    for (const SavedSequence& sequence : saved) index.note_refused(sequence.tokens, sequence.salt);
    return pass(ok);
  }
  struct Restored {
    Seq seq;
    const SavedSequence* saved;
  };
  std::vector<Restored> restored;  // most recently used first
  for (std::size_t i = saved.size(); i-- > 0;) {
    if (cache.usage().seqs >= cache.options().max_seqs) {
      index.note_no_room(saved[i].tokens, saved[i].salt);
      continue;
    }
    const auto seq = snapshot.restore(i, model, cache, {reencode, {}});
    if (!seq && (seq.error().code == Code::capacity || seq.error().code == Code::exhausted)) {
      index.note_no_room(saved[i].tokens, saved[i].salt);
      continue;
    }
    if (!seq) {
      for (const Restored& one : restored) (void)cache.close(one.seq);
      return pass(seq);
    }
    restored.push_back({*seq, &saved[i]});
  }
  for (auto one = restored.rbegin(); one != restored.rend(); ++one) {
    if (auto ok = index.insert(one->seq, one->saved->tokens, one->saved->salt); !ok) return pass(ok);
  }
  return restored.size();
}

}  // namespace stet::kv
