#include "experiments/ranks/comm.h"

#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/config/config.h"
#include "core/errors.h"
#include "experiments/ranks/gpu_group.h"
#include "experiments/system/exit_codes.h"

namespace headlab {
namespace {

using c10d::Backend;
using std::chrono::milliseconds;
using std::chrono::seconds;

// How long a rank that has an error waits for the others to read it, and they for its note.
constexpr milliseconds kNoteTime{2000}, kBetweenLooks{10};
constexpr std::chrono::microseconds kBetweenGpuLooks{20};
// Above it every rank adds a share of the numbers and hands the sums on: twice the bytes of the
// tensor for each, however many ranks there are.
constexpr int64_t kSharedSumBytes = 16 << 20;

std::string note_key(int rank) { return fmt::format("left/{}", rank); }
std::string left_key(int rank) { return fmt::format("is left/{}", rank); }
std::string read_key(int rank) { return fmt::format("read/{}", rank); }

std::string first_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

class Alone : public Comm {
 public:
  Alone() : Comm(0, 1) {}
  void sum(Tensor&) override {}
  void broadcast(Tensor&) override {}
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  void leave(int, const std::string&) noexcept override {}
};

// What the engine says and keeps by itself, unless the user has asked for it; and what it leaves to
// Python.
void set_up_engine() {
  signal(SIGPIPE, SIG_IGN);                          // the store writes to ranks that are gone
  if (!environment_variable("TORCH_CPP_LOG_LEVEL"))  // its warnings are of hosts without a name
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  // Its record of all calls is read by nobody, and groups that several threads make at once damage
  // it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*replace=*/0);
}

c10::intrusive_ptr<c10d::Store> meet(const Launch& launch, seconds timeout) {
  static std::once_flag set;
  std::call_once(set, set_up_engine);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = launch.rank == 0 && !launch.served;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::PrefixStore>(
      launch.prefix(), c10::make_intrusive<c10d::TCPStore>(launch.address, options));
}

// Gloo binds to the interface that reaches the store: a host's own name is often 127.0.1.1.
std::shared_ptr<gloo::transport::Device> gloo_device(const Launch& launch) {
  if (const auto name = environment_variable("GLOO_SOCKET_IFNAME"))
    return c10d::ProcessGroupGloo::createDeviceForInterface(*name);
  return c10d::ProcessGroupGloo::createDeviceForHostname(address_towards(launch));
}

// What another rank left as it ended with an error.
LostRank left_by(c10d::Store& store, int who, int reader) {
  const auto note = store.get_to_str(note_key(who));
  store.set(read_key(reader), "1");
  int code = kResumable;
  const auto [end, error] = std::from_chars(note.data(), note.data() + note.size(), code);
  return {{who}, code, error == std::errc() && *end == ' ' ? end + 1 : note};
}

// Who is gone, where a call of this rank has failed. Whoever is left says so: without a note, who
// is lost is told by who has not. The ranks that meet the loss last wait for the shortest time, and
// all that are left go together.
LostRank lost_rank(c10d::Store& store, int rank, int size, const std::string& said) {
  std::vector<int> silent;
  try {
    store.set(left_key(rank), "1");
    for (milliseconds waited{0}; waited < kNoteTime; waited += kBetweenLooks) {
      silent.clear();
      for (int r = 0; r < size; ++r) {
        if (r == rank) continue;
        if (store.check({note_key(r)})) return left_by(store, r, rank);
        if (!store.check({left_key(r)})) silent.push_back(r);
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  } catch (const std::exception&) {  // rank 0 served the store
    return {{0}, kResumable, said};
  }
  return {silent, kResumable, said};
}

class Group : public Comm {
 public:
  Group(const Launch& launch, const CommSettings& settings)
      : Comm(launch.rank, launch.size),
        settings_(settings),
        serves_(launch.rank == 0 && !launch.served),
        store_(meet(launch, settings.timeout)) {
    auto options = c10d::ProcessGroupGloo::Options::create(settings.timeout);
    options->devices.push_back(gloo_device(launch));
    hosts_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, rank(), size(), options);
    if (settings.device.is_cuda()) gpus_ = make_gpu_group(store_, rank(), size(), settings.timeout);
  }
  ~Group() override {
    if (gpus_) gpus_->shutdown();
  }

  void sum(Tensor& x) override {
    TORCH_CHECK(x.is_contiguous(), "sums over ranks are of contiguous tensors");
    auto flat = x.view({-1});
    if (size() == 2 || settings_.fast_sum) {  // two are added in the order of the ranks, too
      std::vector<Tensor> all{flat};
      wait(x, [&](Backend& of) { return of.allreduce(all); });
    } else if (x.numel() * x.element_size() > kSharedSumBytes) {
      sum_in_shares(flat);
    } else {
      flat.copy_(sum_of_rows(gathered(flat)));
    }
  }

  void broadcast(Tensor& x) override {
    std::vector<Tensor> all{x};
    wait(x, [&](Backend& of) { return of.broadcast(all); });
  }

  std::vector<std::string> gather(const std::string& text) override {
    const auto sizes = gathered(at::full({1}, std::ssize(text), at::kLong));  // [N,1]
    auto padded = at::zeros({sizes.max().item<int64_t>()}, at::kByte);
    std::copy(text.begin(), text.end(), padded.data_ptr<uint8_t>());
    std::vector<std::string> texts(size());
    if (padded.numel() == 0) return texts;
    const auto rows = gathered(padded);  // [N,n]
    for (int r = 0; r < size(); ++r) {
      const auto* begin = rows[r].data_ptr<uint8_t>();
      texts[r].assign(begin, begin + sizes[r].item<int64_t>());
    }
    return texts;
  }

  // The connections go first: the others, who wait in a sum, find them closed and look for the
  // note.
  void leave(int exit_code, const std::string& why) noexcept override {
    try {
      store_->set(note_key(rank()), fmt::format("{} {}", exit_code, why));
      hosts_.reset();
      if (serves_) wait_for_readers();
    } catch (const std::exception&) {  // the store is gone with who served it
    }
  }

 private:
  // Rows of all ranks, [N,n], of a flat tensor.
  Tensor gathered(const Tensor& flat) {
    auto mine = flat;
    auto all = at::empty({size() * flat.numel()}, flat.options());
    wait(flat, [&](Backend& of) { return of._allgather_base(all, mine); });
    return all.view({size(), -1});
  }

  static Tensor sum_of_rows(const Tensor& rows) {
    auto sum = rows[0].clone();
    for (int64_t r = 1; r < rows.size(0); ++r) sum.add_(rows[r]);
    return sum;
  }

  void sum_in_shares(Tensor& flat) {
    const int64_t share = (flat.numel() + size() - 1) / size();
    auto mine = at::zeros({size() * share}, flat.options());
    mine.narrow(0, 0, flat.numel()).copy_(flat);
    auto theirs = at::empty_like(mine);
    std::vector<int64_t> equal;
    wait(flat, [&](Backend& of) { return of.alltoall_base(theirs, mine, equal, equal); });
    const auto sums = gathered(sum_of_rows(theirs.view({size(), share})));
    flat.copy_(sums.flatten().narrow(0, 0, flat.numel()));
  }

  // A call that all ranks make of a tensor like `x`; where it fails, why one of them has left.
  template <class Begin>
  void wait(const Tensor& x, const Begin& begin) {
    TORCH_CHECK(hosts_, "a rank that has left asks the others for nothing");
    try {
      if (!x.is_cuda()) {
        begin(*hosts_)->wait();
        return;
      }
      TORCH_CHECK(gpus_, "ranks that have met without GPUs have no sums on them");
      // NCCL waits for a rank that is gone as long as for one that is late; Gloo tells them apart.
      std::vector<Tensor> met{at::zeros({1})};
      hosts_->allreduce(met)->wait();
      wait_for_gpus(*begin(*gpus_));
    } catch (const std::exception& error) {
      throw_lost(first_line(error));
    }
  }

  // Not by wait(), which makes the stream wait and not this thread, so that NCCL's own would end
  // the process where a rank is lost.
  void wait_for_gpus(c10d::Work& work) {
    const auto end = std::chrono::steady_clock::now() + settings_.timeout;
    while (!work.isCompleted()) {
      if (std::chrono::steady_clock::now() > end) {
        gpus_->abort();
        throw std::runtime_error("GPUs of other ranks do not answer");
      }
      std::this_thread::sleep_for(kBetweenGpuLooks);
    }
    if (work.exception()) std::rethrow_exception(work.exception());
    work.wait();
  }

  // Looks in a thread of its own, which ends with the process: where the host of the store is gone,
  // its answers are waited for without end.
  [[noreturn]] void throw_lost(const std::string& said) {
    std::promise<LostRank> found;
    auto lost = found.get_future();
    std::thread([store = store_, rank = rank(), size = size(), said,
                 found = std::move(found)]() mutable {
      found.set_value(lost_rank(*store, rank, size, said));
    }).detach();
    if (lost.wait_for(2 * kNoteTime) == std::future_status::ready) throw lost.get();
    throw LostRank({0}, kResumable, said);
  }

  void wait_for_readers() {
    for (milliseconds waited{0}; waited < kNoteTime; waited += kBetweenLooks) {
      bool all = true;
      for (int r = 1; r < size(); ++r) all = all && store_->check({read_key(r)});
      if (all) return;
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  CommSettings settings_;
  bool serves_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Backend> hosts_, gpus_;  // for tensors on CPUs, and on GPUs
};

}  // namespace

LostRank::LostRank(const std::vector<int>& ranks, int code, const std::string& why)
    : std::runtime_error(fmt::format("lost {}{}: {}", ranks.size() == 1 ? "rank " : "ranks ",
                                     fmt::join(ranks, ", "), why)),
      code_(code) {}

std::string Comm::broadcast(const std::string& text) {
  auto size = at::full({1}, std::ssize(text), at::kLong);
  broadcast(size);
  auto bytes = at::empty(size.item<int64_t>(), at::kByte);
  if (first()) std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  if (bytes.numel() > 0) broadcast(bytes);
  return {bytes.data_ptr<uint8_t>(), bytes.data_ptr<uint8_t>() + bytes.numel()};
}

Comm& alone() {
  static Alone only;
  return only;
}

std::unique_ptr<Comm> make_comm(const Launch& launch, const CommSettings& settings) {
  try {
    return std::make_unique<Group>(launch, settings);
  } catch (const std::exception& error) {
    throw DeviceError(fmt::format("rank {} of {} does not meet the others at {}:{} in {} s: {}",
                                  launch.rank, launch.size, launch.address, launch.port,
                                  settings.timeout.count(), first_line(error)));
  }
}

void require_same(Comm& comm, const std::string& what, const std::string& text) {
  const auto all = comm.gather(text);
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      throw ConfigError(fmt::format("{} of rank {} differs from that of rank 0", what, r));
}

}  // namespace headlab
