#include "kv/radix_tree.hpp"

#include <algorithm>
#include <utility>

namespace stet::kv {

RadixTree::RadixTree(int hash_bits)
    : mask_(hash_bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << hash_bits) - 1),
      root_(std::make_unique<Node>()) {}

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t RadixTree::hash(const Node* parent, TokenId first) const noexcept {
  std::uint64_t z = parent->id * 0x9E3779B97F4A7C15U + static_cast<std::uint32_t>(first);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return (z ^ (z >> 31)) & mask_;
}

RadixTree::Node* RadixTree::child(const Node* parent, TokenId first) const {
  const auto [begin, end] = by_hash_.equal_range(hash(parent, first));
  for (auto at = begin; at != end; ++at) {
    if (at->second->parent == parent && at->second->run.front() == first) return at->second;
  }
  return nullptr;
}

RadixTree::Match RadixTree::match(std::span<const TokenId> ids) const {
  Match match{root_.get(), 0};
  while (match.tokens < ids.size()) {
    const Node* next = child(match.node, ids[match.tokens]);
    if (next == nullptr) break;
    const auto rest = ids.subspan(match.tokens);
    const auto [differs, ignored] = std::mismatch(next->run.begin(), next->run.end(), rest.begin(), rest.end());
    match = {next, match.tokens + static_cast<std::size_t>(differs - next->run.begin())};
    if (differs != next->run.end()) break;
  }
  return match;
}

RadixTree::Node* RadixTree::insert(std::span<const TokenId> ids) {
  const Match found = match(ids);
  // Nodes belong to the tree, which is not const here.
  auto* node = const_cast<Node*>(found.node);
  if (found.tokens < node->depth) node = split(node, node->run.size() - (node->depth - found.tokens));
  return found.tokens < ids.size() ? add(node, ids.subspan(found.tokens)) : node;
}

RadixTree::Node* RadixTree::add(Node* parent, std::span<const TokenId> run) {
  auto node = std::make_unique<Node>();
  node->parent = parent;
  node->id = next_id_++;
  node->run.assign(run.begin(), run.end());
  node->depth = parent->depth + run.size();
  parent->children.push_back(std::move(node));
  list(parent->children.back().get());
  return parent->children.back().get();
}

// A node for the first `at` tokens of another's run, between it and its parent.
RadixTree::Node* RadixTree::split(Node* node, std::size_t at) {
  unlist(node);
  Node* parent = node->parent;
  std::unique_ptr<Node> lower = take(node);
  Node* upper = add(parent, std::span<const TokenId>(node->run).first(at));
  node->run.erase(node->run.begin(), node->run.begin() + static_cast<std::ptrdiff_t>(at));
  node->parent = upper;
  upper->children.push_back(std::move(lower));
  list(node);
  return upper;
}

void RadixTree::remove(Node* node) {
  node->value = kNone;
  while (node->parent != nullptr && node->value == kNone && node->children.empty()) {
    Node* parent = node->parent;
    unlist(node);
    take(node);
    node = parent;
  }
  if (node->parent == nullptr || node->value != kNone || node->children.size() != 1) return;
  // What is left only leads to its one child: that takes its run, and its place.
  Node *child = node->children.front().get(), *parent = node->parent;
  unlist(child);
  unlist(node);
  child->run.insert(child->run.begin(), node->run.begin(), node->run.end());
  child->parent = parent;
  std::unique_ptr<Node> kept = std::move(node->children.front());
  take(node);
  parent->children.push_back(std::move(kept));
  list(child);
}

void RadixTree::list(Node* node) {
  by_hash_.emplace(hash(node->parent, node->run.front()), node);
}

void RadixTree::unlist(const Node* node) {
  const auto [begin, end] = by_hash_.equal_range(hash(node->parent, node->run.front()));
  by_hash_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == node; }));
}

std::unique_ptr<RadixTree::Node> RadixTree::take(Node* node) {
  auto& siblings = node->parent->children;
  const auto at =
      std::find_if(siblings.begin(), siblings.end(), [&](const auto& other) { return other.get() == node; });
  std::unique_ptr<Node> taken = std::move(*at);
  siblings.erase(at);
  return taken;
}

}  // namespace stet::kv
