#include "sharding/gloo_mailbox.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "harness/core/error.h"
#include "harness/core/text.h"

namespace assay {
namespace {

int tag_of(GlooMailbox::Sort sort) { return static_cast<int>(sort); }

std::vector<at::Tensor> bytes_at(const void* data, std::int64_t bytes) {
  return {at::from_blob(const_cast<void*>(data), {bytes}, at::kByte)};
}

/// The first line of an error of the library, without its source and line in brackets.
std::string cleaned(const char* what) {
  const auto text = first_line(what);
  const auto end = text.starts_with('[') ? text.find(".cc:") : std::string::npos;
  return end == std::string::npos ? text : text.substr(text.find("] ", end) + 2);
}

template <class Action>
auto with_peer(int peer, Action action) {
  try {
    return action();
  } catch (const std::exception& error) {
    throw Error(ErrorKind::communication, "rank " + std::to_string(peer) + ": " + cleaned(error.what()));
  }
}

}  // namespace

void GlooMailbox::send(Sort sort, const void* data, std::int64_t bytes, int peer) {
  auto tensors = bytes_at(data, bytes);
  add(sort, with_peer(peer, [&] { return group_->send(tensors, peer, tag_of(sort)); }), peer);
}

void GlooMailbox::receive(Sort sort, void* data, std::int64_t bytes, int peer) {
  auto tensors = bytes_at(data, bytes);
  add(sort, with_peer(peer, [&] { return group_->recv(tensors, peer, tag_of(sort)); }), peer);
}

void GlooMailbox::add(Sort sort, c10::intrusive_ptr<c10d::Work> work, int peer) {
  const std::lock_guard lock(mutex_);
  if (closed_) work->abort();
  of(sort).push_back({std::move(work), peer});
}

void GlooMailbox::finish(Sort sort) {
  const auto end = std::chrono::steady_clock::now() + timeout_;
  for (const auto& message : of(sort)) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    // No time at all would mean to the library: the default.
    const auto wait = std::max(left, std::chrono::milliseconds(1));
    if (!with_peer(message.peer, [&] { return message.work->wait(wait); })) {
      throw Error(ErrorKind::communication, "rank " + std::to_string(message.peer) + ": ended by this rank itself");
    }
  }
  const std::lock_guard lock(mutex_);
  of(sort).clear();
}

void GlooMailbox::drop() {
  const std::lock_guard lock(mutex_);
  for (auto& messages : messages_) messages.clear();
}

void GlooMailbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& messages : messages_) {
    for (const auto& message : messages) message.work->abort();
  }
}

}  // namespace assay
