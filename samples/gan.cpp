// A generative adversarial network (Goodfellow et al., "Generative adversarial nets", NeurIPS 2014)
// learns eight Gaussians on a ring. Two models play against each other. Each has its own optimizer
// and DDP; the generator's loss runs through both.
//
// Every rank draws the whole batch, from the same seed, and takes its own rows of it. So the rows
// of a step are the same for any number of ranks, and so is the weighted mean of their gradients.

#include <lockstep/lockstep.h>

#include <numbers>
using namespace lockstep;

constexpr std::int64_t modes = 8, noise = 8, batch = 128;

/// n points on the ring: point i is center i % 8.
Tensor centers(std::int64_t n) {
  Tensor angle = cast(Tensor::arange(n) % modes, DType::f32) * (2 * std::numbers::pi / modes);
  return stack({cos(angle), sin(angle)}, 1);
}
/// How many of the centers are near to at least 2 % of the points.
double modes_near(const Tensor& points) {
  auto [distance, center] = min(norm(unsqueeze(points, 1) - centers(modes), -1), 1);
  Tensor near = one_hot(center, modes) * cast(unsqueeze(distance < 0.15, 1), DType::i64);
  return sum(sum(near, 0) >= 0.02 * points.size(0)).item();
}
nn::Sequential mlp(std::int64_t in, std::int64_t out) {
  return nn::Sequential{nn::Linear(in, 64), nn::LeakyReLU(0.2), nn::Linear(64, 64),
                        nn::LeakyReLU(0.2), nn::Linear(64, out)};
}

int main() {
  World world = World::join();
  manual_seed(0);
  nn::Sequential generator = mlp(noise, 2), critic = mlp(2, 1);
  optim::Adam generator_adam(generator.parameters(), {.lr = 1e-3, .beta1 = 0.5});
  optim::Adam critic_adam(critic.parameters(), {.lr = 1e-3, .beta1 = 0.5});
  dist::DistributedDataParallel ddp(generator.parameters(), generator.buffers(), world);
  dist::DistributedDataParallel critic_ddp(critic.parameters(), critic.buffers(), world);

  const std::int64_t begin = batch * world.rank() / world.size();
  const std::int64_t end = batch * (world.rank() + 1) / world.size();
  const auto truth = [](const Tensor& logits, double p) {
    return nn::bce_with_logits(logits, full_like(logits, p));
  };
  const auto play = [&](optim::Adam& player, auto loss_of) {
    Tape tape;
    Tensor loss = loss_of();
    tape.backward(loss, Weight{end - begin, batch});
    player.step();
    generator_adam.zero_grad();  // the generator's loss has reached the critic, too
    critic_adam.zero_grad();
    return loss.item() * (end - begin) / batch;
  };
  double found = 0;
  for (int step = 0; step <= 1000; ++step) {
    Tensor real = (centers(batch) + 0.05 * Tensor::randn({batch, 2})).slice(begin, end);
    Tensor z = Tensor::randn({batch, noise}).slice(begin, end);
    Tensor fake = generator(z);  // no tape lives: a constant for the critic
    double critic_loss =
        play(critic_adam, [&] { return truth(critic(real), 1) + truth(critic(fake), 0); });
    double generator_loss = play(generator_adam, [&] { return truth(critic(generator(z)), 1); });
    if (step % 100 == 0) {
      found = modes_near(generator(Tensor::randn({500, noise})));
      critic_loss = dist::sum_over_ranks(world, critic_loss);
      generator_loss = dist::sum_over_ranks(world, generator_loss);
      if (world.rank() == 0)
        fmt::print("step {:>4}  critic {:.6f}  generator {:.6f}  modes found {}\n", step,
                   critic_loss, generator_loss, found);
    }
  }
  check<Error>(found == modes, "the generator has found {} of {} modes", found, modes);
  if (world.rank() == 0) fmt::print("final modes={}\n", found);
}
