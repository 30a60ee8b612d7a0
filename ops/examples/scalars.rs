//! The worked example of backpropagation, step by step: `cargo run --release --example scalars`.
//!
//! For `z = x * y` and `h = log(z) + exp(z)`, the value `z` contributes to `h` on two paths. The queue of values with
//! their gradients is printed before every step. A value leaves the queue when all contributions to its gradient have
//! been added, so the rule of `z = x * y` is applied once. With a folder as argument, the queue is also drawn on the
//! graph before every step, as `step_0.dot`, `step_1.dot` and so on, for `dot -Tsvg -O`.
//!
//! ```text
//! 0: h: 1
//! 1: exp z: 1, log z: 1
//! 2: log z: 1, z: 403.4287934927351
//! 3: z: 403.5954601594018
//! 4: y: 807.1909203188036, x: 1210.7863804782055
//! 5: x: 1210.7863804782055
//! 6:
//! dh/dx = 1210.7863804782055, dh/dy = 807.1909203188036
//! ```

use std::{env, error::Error, fs, path::Path};

use autobwd::{
    Builder, Expr, Result, Tensor,
    tape::{backward_with, eager_with_threads, history},
};
use autobwd_ops::Math;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    print!("{}", text()?);
    if let Some(folder) = env::args_os().nth(1) {
        fs::create_dir_all(&folder)?;
        for (step, picture) in pictures()?.iter().enumerate() {
            fs::write(Path::new(&folder).join(format!("step_{step}.dot")), picture)?;
        }
    }
    Ok(())
}

/// The leaves `x` and `y`, and `h`.
fn example(tape: &Builder) -> Result<[Expr; 3]> {
    let x = tape.leaf("x", Tensor::scalar(2.0)?);
    let y = tape.leaf("y", Tensor::scalar(3.0)?);
    let z = (&x * &y).named("z");
    let h = (z.log().named("log z") + z.exp().named("exp z")).named("h");
    Ok([x, y, h])
}

/// The printed text.
pub fn text() -> Result<String> {
    let [x, y, h] = example(&eager_with_threads(1))?;
    let (mut text, mut step) = (String::new(), 0);
    backward_with(&h, None, &mut |queue| {
        text += format!("{step}: {queue}").trim_end();
        text += "\n";
        step += 1;
    })?;
    text += &format!("dh/dx = {}, dh/dy = {}\n", x.gradient()?.item()?, y.gradient()?.item()?);
    Ok(text)
}

/// The queue before every step, drawn on the graph.
pub fn pictures() -> Result<Vec<String>> {
    let [_, _, h] = example(&eager_with_threads(1))?;
    let (history, mut pictures) = (history(&h)?, vec![]);
    backward_with(&h, None, &mut |queue| pictures.push(history.queue_to_dot(queue)))?;
    Ok(pictures)
}
