// A radix tree over token ids: which of many token sequences begins like a given one, and how far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "stet/types.hpp"

namespace stet::kv {

/// Nodes are runs of tokens after their parent's; siblings begin with different tokens, and a node without a value has
/// at least two children (the root excepted). Children are found by a hash of parent and first token, and then
/// compared: a hash that collides costs time and nothing else.
class RadixTree {
 public:
  using Value = std::uint64_t;
  static constexpr Value kNone = 0;

  struct Node {
    Node* parent = nullptr;
    std::uint64_t id = 0;
    std::vector<TokenId> run;
    std::size_t depth = 0;  // tokens from the root to the end of the run
    Value value = kNone;
    std::vector<std::unique_ptr<Node>> children;
  };

  /// Only the low `hash_bits` of hashes are used: tests make them collide.
  explicit RadixTree(int hash_bits = 64);
  RadixTree(RadixTree&&) = default;

  struct Match {
    const Node* node = nullptr;  // all values at and below it begin with the first `tokens` ids, and no others do
    std::size_t tokens = 0;      // may end within the node's run
  };
  /// The longest common prefix of `ids` with any sequence in the tree.
  Match match(std::span<const TokenId> ids) const;

  /// The node that ends where `ids` end. Its value is kNone where it is new; the caller sets one.
  Node* insert(std::span<const TokenId> ids);

  /// Takes the value of a node away, and with it the nodes that are then of no use.
  void remove(Node* node);

  const Node* root() const noexcept { return root_.get(); }
  bool empty() const noexcept { return root_->value == kNone && root_->children.empty(); }
  std::size_t nodes() const noexcept { return by_hash_.size(); }  // without the root

 private:
  std::uint64_t hash(const Node* parent, TokenId first) const noexcept;
  Node* child(const Node* parent, TokenId first) const;
  Node* add(Node* parent, std::span<const TokenId> run);
  Node* split(Node* node, std::size_t at);
  void list(Node* node);
  void unlist(const Node* node);
  std::unique_ptr<Node> take(Node* node);

  std::uint64_t mask_;
  std::uint64_t next_id_ = 1;
  std::unique_ptr<Node> root_;
  std::unordered_multimap<std::uint64_t, Node*> by_hash_;
};

}  // namespace stet::kv
