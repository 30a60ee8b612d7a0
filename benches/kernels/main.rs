//! Kernels in isolation: vector functions compared with the standard library, matrix products, convolutions.
//!
//! `cargo bench -p autobwd-benches --bench kernels`, on one thread. Functions run on 1,000 elements, so that
//! microseconds are nanoseconds per element.

use autobwd::{Builder, DType, Executor, Expr, OpInfoMap, Scope, Tensor, tensor::Element};
use autobwd_benches::alone;
use autobwd_ops::Math;
use divan::{Bencher, black_box, counter::ItemsCount};

const ELEMENTS: usize = 1000;
const FUNCTIONS: [&str; 13] = [
    "exp",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "sigmoid",
    "erf",
    "gelu",
    "sin",
    "cos",
    "elementwise_pow",
    "sqrt",
    "reciprocal",
];

fn main() {
    eprintln!("{:?}", autobwd::op::isa());
    divan::main();
}

/// As a formula, with the instruction set named above; `AUTOBWD_ISA=baseline` or `avx2` selects another.
#[divan::bench(args = FUNCTIONS, types = [f32, f64])]
fn function<T: Element>(bencher: Bencher<'_, '_>, name: &str) {
    let executor = Executor::with_threads(1);
    let info = OpInfoMap::linked().unwrap().get(name).unwrap();
    let (mut scope, mut session) = alone(&executor, info, T::DTYPE, ELEMENTS).unwrap();
    bencher.counter(ItemsCount::new(ELEMENTS)).bench_local(|| session.run(&mut scope).unwrap());
}

/// Number types with functions in the standard library.
trait Std: Copy + From<f32> {
    fn function(name: &str) -> Option<fn(Self) -> Self>;
}
macro_rules! std_functions {
    ($($t:ident)*) => {$(
        impl Std for $t {
            fn function(name: &str) -> Option<fn($t) -> $t> {
                Some(match name {
                    "exp" => $t::exp,
                    "expm1" => $t::exp_m1,
                    "log" => $t::ln,
                    "log1p" => $t::ln_1p,
                    "tanh" => $t::tanh,
                    "sigmoid" => |x| 1.0 / (1.0 + (-x).exp()),
                    "sin" => $t::sin,
                    "cos" => $t::cos,
                    "elementwise_pow" => |x| x.powf(0.3 + x),
                    "sqrt" => $t::sqrt,
                    "reciprocal" => $t::recip,
                    _ => return None,
                })
            }
        }
    )*};
}
std_functions!(f32 f64);

/// Element by element, by the standard library, if it has the function.
#[divan::bench(args = FUNCTIONS, types = [f32, f64])]
fn std<T: Std>(bencher: Bencher<'_, '_>, name: &str) {
    let x: Vec<T> = (1..=ELEMENTS).map(|i| T::from((i as f32 * 0.618_034).fract().max(0.01))).collect();
    let mut y = x.clone();
    let Some(function) = T::function(name) else { return };
    bencher.counter(ItemsCount::new(ELEMENTS)).bench_local(|| {
        x.iter().zip(&mut y).for_each(|(x, y)| *y = function(*x));
        black_box(&mut y);
    });
}

/// Runs an expression on variables of these shapes; `count` is the work for the printed rate.
fn run(bencher: Bencher<'_, '_>, shapes: &[&[usize]], count: usize, f: impl Fn(&[Expr]) -> Expr) {
    let (net, mut scope) = (Builder::new(), Scope::new());
    let variable = |(i, dims): (usize, &&[usize])| {
        let n = dims.iter().product::<usize>();
        let numbers: Vec<f32> = (0..n).map(|j| ((i + j) as f32 * 0.618_034).fract() - 0.5).collect();
        scope.set(format!("x{i}").as_str(), Tensor::from_vec(*dims, numbers).unwrap());
        net.persistable(&format!("x{i}"), DType::F32, dims, Expr::clone)
    };
    let variables: Vec<_> = shapes.iter().enumerate().map(variable).collect();
    let out = f(&variables).name();
    let executor = Executor::with_threads(1);
    let mut session = executor.prepare(&net.program().unwrap(), &mut scope, &[], &[&out]).unwrap();
    bencher.counter(ItemsCount::new(count)).bench_local(|| session.run(&mut scope).unwrap());
}

/// Square products; the printed rate is floating-point operations per second.
#[divan::bench(args = [8, 16, 32, 64, 128, 256, 512, 1024])]
fn product(bencher: Bencher<'_, '_>, n: usize) {
    run(bencher, &[&[n, n], &[n, n]], 2 * n * n * n, |x| x[0].matmul(&x[1]));
}

/// The convolutions of `lenet`: channels, height and width of 64 images, and 5 × 5 filters.
#[divan::bench(args = [(1, 28, 20), (20, 12, 50)])]
fn convolution(bencher: Bencher<'_, '_>, (channels, size, filters): (usize, usize, usize)) {
    let flop = 64 * 2 * (size - 4) * (size - 4) * channels * 25 * filters;
    let shapes: [&[usize]; 2] = [&[64, channels, size, size], &[filters, channels, 5, 5]];
    run(bencher, &shapes, flop, |x| x[0].conv2d(&x[1], 1, 0));
}

/// The max pooling of `lenet`: channels, height and width of 64 images.
#[divan::bench(args = [(20, 24), (50, 8)])]
fn maximum(bencher: Bencher<'_, '_>, (channels, size): (usize, usize)) {
    let dims = [64, channels, size, size];
    run(bencher, &[&dims], dims.iter().product(), |x| x[0].max_pool2d(2, 2));
}
