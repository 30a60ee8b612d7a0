//! The nets of PaddlePaddle's first design documents with their gradients: `cargo run --example nets`.

use autobwd::{
    Result,
    net::{NetOp, Operator, RnnOp, backward},
};
use autobwd_ops::{
    activation::{Sigmoid, Tanh},
    elementwise::{ElementwiseAdd, ElementwiseMul, Minus},
    matmul::Mul,
    shape::Split,
};

fn add(x: &str, y: &str, out: &str) -> Operator {
    Operator::of(ElementwiseAdd { x, y, out, axis: -1 })
}

fn mul(x: &str, y: &str, out: &str) -> Operator {
    Operator::of(Mul { x, y, out, x_num_col_dims: 1, y_num_col_dims: 1 })
}

/// A fully connected layer.
fn fc(x: &str, w: &str, b: &str, out: &str) -> Result<Operator> {
    let (product, sum) = (&*format!("{out}.product"), &*format!("{out}.sum"));
    let add = Operator::of(ElementwiseAdd { x: product, y: b, out: sum, axis: 1 });
    Ok(NetOp::new("fc", [mul(x, w, product), add, Operator::of(Sigmoid { x: sum, out })])?.into())
}

/// A simple recurrent network.
fn rnn() -> Result<Operator> {
    let step = NetOp::new(
        "step",
        [
            mul("x", "W", "from_x"),
            mul("h@pre", "U", "from_h"),
            add("from_x", "from_h", "sum"),
            Operator::of(Tanh { x: "sum", out: "h" }),
        ],
    )?;
    let rnn = RnnOp::new("rnn", step)?.step_input("xs", "x")?.memory("h_boot", "h@pre", "h")?;
    Ok(rnn.step_output("h", "hs")?.into())
}

/// A net, and its no-grad set.
type Example = (&'static str, Operator, &'static [&'static str]);

fn examples() -> Result<Vec<Example>> {
    let shared = NetOp::new("net", [mul("x", "W", "h"), mul("h", "W", "y")])?;
    let twice = NetOp::new("net", [Operator::of(ElementwiseMul { x: "x", y: "x", out: "y", axis: -1 })])?;
    let nested = NetOp::new("net", [fc("x", "W", "b", "h")?, fc("h", "W", "b", "y")?])?;
    let pieces = Operator::of(Split {
        x: "x",
        out: vec!["a", "b"],
        axis: 0,
        num: 2,
        sections: vec![],
        axis_tensor: None,
        sections_tensor_list: vec![],
    });
    let part = NetOp::new("net", [pieces, Operator::of(Tanh { x: "a", out: "y" })])?.returning(["y"])?;
    Ok(vec![
        ("add_two of the documents, here elementwise_add", add("x", "y", "out"), &[]),
        ("mul", mul("x", "W", "out"), &[]),
        ("mul, without the gradient of the data", mul("x", "W", "out"), &["x"]),
        ("mul, without the gradient of the output", mul("x", "W", "out"), &["out"]),
        ("minus: its gradient is a net", Operator::of(Minus { x: "x", y: "y", out: "out" }), &[]),
        ("a fully connected layer", fc("x", "W", "b", "y")?, &[]),
        ("a variable that two operators share", shared.into(), &[]),
        ("a variable that an operator reads twice", twice.into(), &[]),
        ("variables that two nets share", nested.into(), &["x"]),
        ("a gradient with a zero part", part.into(), &[]),
        ("a recurrent network", rnn()?, &[]),
    ])
}

/// Prints all nets with their gradients.
pub fn text() -> Result<String> {
    let mut text = String::new();
    for (title, net, no_grad) in examples()? {
        text += &format!("{title}\n\n{net}\nbackward\n\n{}\n", backward(&net, no_grad)?);
    }
    Ok(text)
}

fn main() -> Result<()> {
    print!("{}", text()?);
    Ok(())
}
