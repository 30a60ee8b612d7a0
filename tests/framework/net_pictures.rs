//! Pictures of nets: the figures of the design documents.

use autobwd::{
    Result,
    net::{NetOp, Operator, RnnOp, backward},
};
use autobwd_ops::{activation::Sigmoid, elementwise::ElementwiseAdd, matmul::Mul};

use crate::support::nets::{net, tanh, times};

fn mul(x: &str, y: &str, out: &str) -> Operator {
    Operator::of(Mul { x, y, out, x_num_col_dims: 1, y_num_col_dims: 1 })
}

/// The lines that contain a text.
fn lines<'a>(text: &'a str, what: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.contains(what)).map(str::trim).collect()
}

#[test]
fn shared_variable_and_the_added_sum_are_drawn() -> Result<()> {
    let tree = net("net", [mul("x", "W", "h"), mul("h", "W", "y")]);
    let dot = tree.to_dot();
    // One node for the shared variable that both operators read.
    let shared = lines(&dot, "[label=\"W\", shape=ellipse")[0].split(' ').next().unwrap();
    assert_eq!(
        lines(&dot, &format!("{shared} -> ")),
        [format!("{shared} -> op0_0 [label=\"Y\"]"), format!("{shared} -> op0_1 [label=\"Y\"]")]
    );
    assert_eq!(lines(&dot, "op0_0 -> "), ["op0_0 -> op0_1 [label=\"X = h\"]"]);
    let mermaid = tree.to_mermaid();
    assert!(mermaid.contains("op0_0[\"0: mul\"]:::forward"), "{mermaid}");

    // Both contributions under names of their own, and the operator that sums them.
    let gradient = backward(&tree, &["x"])?.to_dot();
    assert_eq!(
        lines(&gradient, "-> op0_2 "),
        ["op0_0 -> op0_2 [label=\"W@GRAD@RENAME@0\"]", "op0_1 -> op0_2 [label=\"W@GRAD@RENAME@1\"]"]
    );
    assert!(gradient.contains("op0_2 [label=\"2: sum\", shape=box, fillcolor=\"#fde3cc\""), "{gradient}");
    assert_eq!(lines(&gradient, "[label=\"W@GRAD\", shape=ellipse").len(), 1);
    Ok(())
}

#[test]
fn nets_in_nets_and_steps_have_frames() -> Result<()> {
    let fc = |x: &str, out: &str| -> Result<Operator> {
        let (product, sum) = (&*format!("{out}.product"), &*format!("{out}.sum"));
        let add = Operator::of(ElementwiseAdd { x: product, y: "b", out: sum, axis: 1 });
        Ok(NetOp::new("fc", [mul(x, "W", product), add, Operator::of(Sigmoid { x: sum, out })])?.into())
    };
    let tree = net("net", [fc("x", "h")?, fc("h", "y")?]);
    let dot = tree.to_dot();
    assert_eq!(lines(&dot, "label=\"fc\";").len(), 2, "{dot}");
    // The second net reads the output of the first; shared variables are outside of both.
    assert!(dot.contains("op0_0 -> op2_0 [label=\"X = h\"]"), "{dot}");
    assert_eq!(lines(&dot, "[label=\"W\", shape=ellipse").len(), 1);
    // Forward and backward in one picture: gradients read the saved values of a net.
    let both = net("both", [tree.clone(), backward(&tree, &["x"])?]).to_dot();
    assert!(both.contains("h.product"), "{both}");

    let step = NetOp::new("step", [times("x", "w", "p"), tanh("p", "q"), times("q", "before", "h")])?;
    let rnn = RnnOp::new("rnn", step)?.step_input("xs", "x")?.memory("boot", "before", "h")?;
    let rnn = Operator::from(rnn.step_output("h", "hs")?);
    let dot = rnn.to_dot();
    assert!(dot.contains("label=\"rnn, every step\";"), "{dot}");
    for (op, count) in [("step_input", 1), ("memory", 1), ("next_step", 1), ("step_output", 1)] {
        assert_eq!(lines(&dot, &format!(": {op}\", shape=box")).len(), count, "{dot}");
    }
    // Variables of a step are local.
    assert!(dot.contains("[label=\"rnn@t/x\"]") || dot.contains("= rnn@t/x\"]"), "{dot}");
    let gradient = backward(&rnn, &[])?.to_dot();
    assert!(gradient.contains("label=\"rnn, the last step\";"), "{gradient}");
    assert!(gradient.contains("label=\"rnn, all steps before\";"), "{gradient}");
    assert_eq!(lines(&gradient, ": elementwise_mul_grad\", shape=box").len(), 4, "{gradient}");
    // Names are escaped, and an empty net is empty.
    let odd = net("a\"b", [net("c\"d\\", [tanh("\"x\"", "<y>")])]);
    assert!(
        odd.to_dot().contains("label=\"c\\\"d\\\\\";") && odd.to_mermaid().contains("#34;x#34;"),
        "{}",
        odd.to_dot()
    );
    assert!(Operator::Nop.to_dot().starts_with("digraph program {"));
    Ok(())
}
