//! Generation with a cache of keys and values: the time of a token against the positions before it.
//!
//! `cargo run --release -p autobwd-benches --bin generation` prints a JSON line for each stretch of positions, with the
//! median of its tokens and of the straight line through the medians, and one for the whole: one sequence, one plan. The
//! model is a decoder of the shape of GPT-2 of 124 M parameters, with rotary embeddings and fewer words.

use std::{process::ExitCode, time::Instant};

use autobwd::{Builder, DType, Executor, Expr, Meta, Scope};
use autobwd_benches::{BenchResult, finish, median, ms, resident_bytes, round};
use autobwd_ops::{
    Math,
    attention::AttentionOptions,
    nn::{Embedding, KvCache, KvCacheStep, LayerNorm, Linear},
};
use clap::Parser;
use serde_json::json;

const DEPTH: usize = 64;
const WORDS: usize = 8192;
/// Positions of a stretch.
const STRETCH: usize = 100;

/// Times the tokens of a generation.
#[derive(Parser)]
struct Args {
    /// Number of tokens, the capacity of the cache.
    #[arg(long, default_value_t = 1000)]
    tokens: usize,
    /// Number of layers.
    #[arg(long, default_value_t = 12)]
    layers: usize,
    /// Number of heads, of 64 elements each.
    #[arg(long, default_value_t = 12)]
    heads: usize,
    /// Threads to run on.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn main() -> ExitCode {
    finish(run(&Args::parse()).map(|()| ExitCode::SUCCESS))
}

fn run(args: &Args) -> BenchResult<()> {
    let &Args { tokens, layers, heads, threads } = args;
    let net = Builder::new();
    let [token, position] = ["token", "position"].map(|name| net.input(name, DType::I64, &[1, 1]));
    let cache = KvCache::builder(&net, layers, [1, tokens, heads, DEPTH]).build();
    let next = decoder(&net, args, &token, &cache.at(&position)).argmax(-1).name();
    let (executor, mut scope) = (Executor::with_threads(threads), Scope::new());
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let feeds = ["token", "position"].map(|name| (name, Meta::new(DType::I64, [1, 1])));
    let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&next])?;
    let before = resident_bytes();
    let (mut times, mut token) = (vec![], 1);
    for position in 0..tokens {
        let start = Instant::now();
        session.feed_mut::<i64>("token")?[0] = token;
        session.feed_mut::<i64>("position")?[0] = position as i64;
        session.run(&mut scope)?;
        token = session.slice::<i64>(&next)?[0];
        times.push(ms(start));
    }
    let medians: Vec<f64> = times.chunks(STRETCH).map(|times| median(times.to_vec())).collect();
    let centre = |i: usize| (i * STRETCH + (i * STRETCH + STRETCH).min(tokens)) as f64 / 2.0;
    let points: Vec<(f64, f64)> = medians.iter().enumerate().map(|(i, ms)| (centre(i), *ms)).collect();
    let (base_ms, ms_per_position) = line(&points);
    for (at, ms) in &points {
        let on_line = base_ms + ms_per_position * at;
        println!("{}", json!({ "position": at, "ms": round(*ms, 3), "line_ms": round(on_line, 3) }));
    }
    let apart = points.iter().map(|(at, ms)| (ms / (base_ms + ms_per_position * at) - 1.0).abs());
    println!(
        "{}",
        json!({
            "tokens": tokens,
            "threads": threads,
            "base_ms": round(base_ms, 3),
            "us_per_position": round(ms_per_position * 1e3, 3),
            "farthest_from_line": round(apart.fold(0.0, f64::max), 3),
            "arena_bytes": session.arena_bytes(),
            "scratch_bytes": session.scratch_bytes(),
            "resident_growth_bytes": resident_bytes().saturating_sub(before),
        })
    );
    Ok(())
}

/// The logits of the next token.
fn decoder(net: &Builder, args: &Args, token: &Expr, cache: &KvCacheStep<'_>) -> Expr {
    let width = args.heads * DEPTH;
    let linear = |from, to, x: &Expr| Linear::builder(net, from, to).build().forward(x);
    let norm = |x: &Expr| LayerNorm::builder(net, width).build().forward(x);
    let mut x = Embedding::builder(net, WORDS, width).build().forward(token);
    for layer in 0..args.layers {
        let normal = norm(&x);
        let [q, k, v] =
            [(); 3].map(|()| linear(width, width, &normal).reshape(&[0, 0, args.heads as i32, DEPTH as i32]));
        let [q, k] = [q, k].map(|x| x.rotary_embedding(cache.positions(), 10_000.0));
        let attended = cache.attend(layer, &q, &k, &v, &AttentionOptions::default());
        x = &x + linear(width, width, &attended.reshape(&[0, 0, width as i32]));
        let hidden = linear(width, 4 * width, &norm(&x)).gelu(true);
        x = &x + linear(4 * width, width, &hidden);
    }
    linear(width, WORDS, &norm(&x))
}

/// The straight line with the least squares of differences: its value at 0, and its rate of change.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(&|(x, _)| *x), mean(&|(_, y)| *y));
    let (spread, common) = (mean(&|(own, _)| (own - x).powi(2)), mean(&|(own, ms)| (own - x) * (ms - y)));
    let rate = if spread > 0.0 { common / spread } else { 0.0 };
    (y - rate * x, rate)
}
