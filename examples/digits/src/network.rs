//! The network: 64 pixels, 32 hidden units (ReLU), 10 classes (softmax), learnt by plain SGD.
//!
//! Weights must be the same bits on every machine, so nothing here comes from the C library's
//! mathematics, which picks its code by the CPU it finds: only + − × ÷ and the square root, which
//! IEEE 754 fixes, in one fixed order, on one thread.

use crate::data::{CLASSES, Digit, PIXELS};
use crate::rng::Rng;

pub(crate) const HIDDEN: usize = 32;
const OUT_AT: usize = HIDDEN * (PIXELS + 1);
pub(crate) const WEIGHTS: usize = OUT_AT + CLASSES * (HIDDEN + 1);

/// All weights in one row: for each hidden unit its 64 weights and its bias, then for each class
/// its 32 weights and its bias.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Network {
    pub(crate) weights: Vec<f64>,
}

struct Forward {
    hidden: [f64; HIDDEN],
    probabilities: [f64; CLASSES],
}

impl Network {
    /// Uniform start, as wide as He et al. give for ReLU; biases start at 0.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let mut weights = vec![0.0; WEIGHTS];
        let (hidden, out) = weights.split_at_mut(OUT_AT);
        for (rows, inputs) in [(hidden, PIXELS), (out, HIDDEN)] {
            let width = (6.0 / inputs as f64).sqrt();
            for row in rows.chunks_exact_mut(inputs + 1) {
                for weight in &mut row[..inputs] {
                    *weight = (rng.unit() * 2.0 - 1.0) * width;
                }
            }
        }
        Network { weights }
    }

    fn forward(&self, pixels: &[f64; PIXELS]) -> Forward {
        let mut hidden = [0.0; HIDDEN];
        for (unit, row) in hidden.iter_mut().zip(self.weights[..OUT_AT].chunks_exact(PIXELS + 1)) {
            *unit = affine(row, pixels).max(0.0);
        }
        let mut probabilities = [0.0; CLASSES];
        for (class, row) in probabilities.iter_mut().zip(self.weights[OUT_AT..].chunks_exact(HIDDEN + 1)) {
            *class = affine(row, &hidden);
        }
        softmax(&mut probabilities);
        Forward { hidden, probabilities }
    }

    /// One step of gradient descent on one mini-batch. Returns the summed cross-entropy.
    pub(crate) fn learn(&mut self, batch: &[&Digit], rate: f64) -> f64 {
        let mut gradient = vec![0.0; WEIGHTS];
        let mut loss = 0.0;
        for digit in batch {
            loss += self.add_gradient(digit, &mut gradient);
        }
        let step = rate / batch.len() as f64;
        for (weight, slope) in self.weights.iter_mut().zip(&gradient) {
            *weight -= step * slope;
        }
        loss
    }

    fn add_gradient(&self, digit: &Digit, gradient: &mut [f64]) -> f64 {
        let forward = self.forward(&digit.pixels);
        let (hidden_gradient, out_gradient) = gradient.split_at_mut(OUT_AT);
        let mut back = [0.0; HIDDEN];
        for class in 0..CLASSES {
            let wanted = if class == digit.class { 1.0 } else { 0.0 };
            let error = forward.probabilities[class] - wanted;
            let at = class * (HIDDEN + 1);
            for unit in 0..HIDDEN {
                out_gradient[at + unit] += error * forward.hidden[unit];
                back[unit] += error * self.weights[OUT_AT + at + unit];
            }
            out_gradient[at + HIDDEN] += error;
        }
        let rows = hidden_gradient.chunks_exact_mut(PIXELS + 1);
        for ((row, back), output) in rows.zip(back).zip(forward.hidden) {
            if output > 0.0 {
                for (slope, pixel) in row.iter_mut().zip(&digit.pixels) {
                    *slope += back * pixel;
                }
                row[PIXELS] += back;
            }
        }
        -ln(forward.probabilities[digit.class].max(f64::MIN_POSITIVE))
    }

    /// How many of these digits the network reads right.
    pub(crate) fn count_right(&self, digits: &[Digit]) -> usize {
        digits.iter().filter(|digit| self.reads(&digit.pixels) == digit.class).count()
    }

    fn reads(&self, pixels: &[f64; PIXELS]) -> usize {
        let probabilities = self.forward(pixels).probabilities;
        let mut best = 0;
        for class in 1..CLASSES {
            if probabilities[class] > probabilities[best] {
                best = class;
            }
        }
        best
    }
}

/// A row's weights times the inputs, plus the bias that ends the row.
fn affine(row: &[f64], inputs: &[f64]) -> f64 {
    let mut sum = row[inputs.len()];
    for (weight, input) in row.iter().zip(inputs) {
        sum += weight * input;
    }
    sum
}

fn softmax(values: &mut [f64]) {
    let highest = values.iter().fold(f64::MIN, |a, &b| a.max(b));
    let mut sum = 0.0;
    for value in values.iter_mut() {
        *value = exp(*value - highest);
        sum += *value;
    }
    for value in values.iter_mut() {
        *value /= sum;
    }
}

/// e^x for x ≤ 0: 2^k times the series of the rest, which is below 0.35.
fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let k = (x / std::f64::consts::LN_2).round();
    let rest = x - k * std::f64::consts::LN_2;
    let mut sum = 1.0;
    for n in (1..=14).rev() {
        sum = 1.0 + sum * rest / f64::from(n);
    }
    sum * f64::from_bits(((1023 + k as i64) as u64) << 52)
}

/// ln x for a normal x > 0: the exponent, and the series of artanh for the mantissa.
fn ln(x: f64) -> f64 {
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    let mantissa = f64::from_bits((x.to_bits() & ((1 << 52) - 1)) | (1023 << 52));
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let mut sum = 0.0;
    for n in (0..20).rev() {
        sum = sum * t * t + 1.0 / f64::from(2 * n + 1);
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * t * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_exp_and_ln_agree_with_the_library() {
        for step in 0..7000 {
            let x = -f64::from(step) / 10.0;
            let (own, library) = (exp(x), x.exp());
            assert!((own - library).abs() <= library * 1e-12, "exp({x}): {own} and {library}");
        }
        for step in 1..1000 {
            let x = f64::from(step) / 999.0;
            assert!((ln(x) - x.ln()).abs() < 1e-12, "ln({x}): {} and {}", ln(x), x.ln());
        }
    }

    /// The slope that back-propagation gives must be the slope that one can measure.
    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let mut rng = Rng::from_seed(7);
        let network = Network::random(&mut rng);
        let mut pixels = [0.0; PIXELS];
        pixels.fill_with(|| rng.unit());
        let digit = Digit { pixels, class: 3 };
        let mut gradient = vec![0.0; WEIGHTS];
        network.add_gradient(&digit, &mut gradient);
        for at in (0..WEIGHTS).step_by(17) {
            let loss_at = |by: f64| {
                let mut moved = network.clone();
                moved.weights[at] += by;
                moved.add_gradient(&digit, &mut vec![0.0; WEIGHTS])
            };
            let slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
            assert!((slope - gradient[at]).abs() < 1e-6, "weight {at}: {slope}, {}", gradient[at]);
        }
    }
}
