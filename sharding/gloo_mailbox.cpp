#include "sharding/gloo_mailbox.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "harness/core/error.h"

namespace assay {
namespace {

constexpr int kTag = 0;  // messages of one tag keep their order

std::vector<at::Tensor> bytes_at(const void* data, std::int64_t bytes) {
  return {at::from_blob(const_cast<void*>(data), {bytes}, at::kByte)};
}

/// The first line of an error of the library, without its source and line in brackets.
std::string cleaned(const char* what) {
  std::string text = what;
  text = text.substr(0, text.find('\n'));
  const auto end = text.front() == '[' ? text.find(".cc:") : std::string::npos;
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

void GlooMailbox::send(const void* data, std::int64_t bytes, int peer) {
  auto tensors = bytes_at(data, bytes);
  add(with_peer(peer, [&] { return group_->send(tensors, peer, kTag); }), peer);
}

void GlooMailbox::receive(void* data, std::int64_t bytes, int peer) {
  auto tensors = bytes_at(data, bytes);
  add(with_peer(peer, [&] { return group_->recv(tensors, peer, kTag); }), peer);
}

void GlooMailbox::add(c10::intrusive_ptr<c10d::Work> work, int peer) {
  const std::lock_guard lock(mutex_);
  if (closed_) work->abort();
  messages_.push_back({std::move(work), peer});
}

void GlooMailbox::finish() {
  const auto end = std::chrono::steady_clock::now() + timeout_;
  for (const auto& message : messages_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    // No time at all would mean to the library: the default.
    const auto wait = std::max(left, std::chrono::milliseconds(1));
    if (!with_peer(message.peer, [&] { return message.work->wait(wait); })) {
      throw Error(ErrorKind::communication, "rank " + std::to_string(message.peer) + ": ended by this rank itself");
    }
  }
  drop();
}

void GlooMailbox::drop() {
  const std::lock_guard lock(mutex_);
  messages_.clear();
}

void GlooMailbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& message : messages_) message.work->abort();
}

}  // namespace assay
