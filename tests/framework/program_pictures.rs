//! Programs as pictures: contents, colours, and escaping of names.

use autobwd::{Attr, BlockId, Builder, DType, Dims, OpDesc, Program, Result, VarDesc, append_backward};
use autobwd_ops::{
    Init, Math,
    optim::{Optimizer, Sgd},
};

use crate::support::compare;

/// Pictures without the source lines.
fn lineless(dot: &str) -> String {
    dot.lines().map(|line| line.split("\\nadded at").next().unwrap_or(line).to_string() + "\n").collect()
}

#[test]
fn training_program_is_drawn() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(3.0).emit(w, 0));
    let h = net.input("x", DType::F32, &[-1, 3]) * &w;
    let pieces = h.split(&[1, 2], 1);
    let loss = (&pieces[1] * &pieces[1]).mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    compare("framework/stories/training.dot", &lineless(&net.program()?.to_dot()));
    compare("framework/stories/training.mmd", &net.program()?.to_mermaid());
    Ok(())
}

#[test]
fn loops_and_branches_are_drawn_around_their_blocks() -> Result<()> {
    let (program, _) = crate::support::programs::nested()?;
    compare("framework/stories/nested.dot", &lineless(&program.to_dot()));
    compare("framework/stories/nested.mmd", &program.to_mermaid());
    Ok(())
}

#[test]
fn picture_in_the_book_is_true() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(3.0).emit(w, 0));
    let loss = (&x * &w).square().mean();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Default::default())?;
    let picture = format!("```mermaid\n{}```\n", program.to_mermaid());
    let chapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../autobwd/book/src/debugging.md");
    assert!(std::fs::read_to_string(chapter).unwrap().contains(&picture), "{chapter} lacks\n{picture}");
    Ok(())
}

/// A loop around a branch, as unregistered operators.
fn nested() -> Program {
    let mut p = Program::new();
    let (i, x, y) = (p.var("i"), p.var("x"), p.var("y"));
    let outer = p.add_block(Some(BlockId::ROOT), None);
    let inner = p.add_block(Some(outer), None);
    p.add_block(Some(inner), None);
    for var in [i, x] {
        p.root_mut().vars.insert(var, VarDesc::new(DType::F32, Dims::from([1])));
    }
    p.root_mut().ops = vec![
        OpDesc::new("start").output("Out", [i]),
        OpDesc::new("loop").input("X", [i]).output("Out", [i]).attr("body", Attr::Block(outer)),
        OpDesc::new("loop").input("X", [i]).output("Out", [i]).attr("body", Attr::Block(BlockId::ROOT)),
    ];
    let body = p.block_mut(outer).unwrap();
    body.vars.insert(y, VarDesc::new(DType::F32, Dims::from([1])));
    body.ops = vec![
        OpDesc::new("step").input("X", [x, i]).output("Out", [y]),
        OpDesc::new("branch").input("X", [y]).attr("cases", Attr::Blocks(vec![inner])),
    ];
    p.block_mut(inner).unwrap().ops = vec![OpDesc::new("stop").input("X", [i, y]).output("Out", [i])];
    p
}

#[test]
fn blocks_are_drawn_inside_each_other() {
    let (dot, mermaid) = (nested().to_dot(), nested().to_mermaid());
    for (text, frames) in [
        (
            &dot,
            [
                "subgraph cluster_1 {",
                "op1_0 ",
                "subgraph cluster_2 {",
                "op2_0 ",
                "subgraph cluster_3 {",
                "}\n}\n}\n",
            ],
        ),
        (
            &mermaid,
            [
                "subgraph block1[",
                "op1_0[",
                "subgraph block2[",
                "op2_0[",
                "subgraph block3[",
                "end\nend\nend\n",
            ],
        ),
    ] {
        let places = frames.map(|frame| text.find(frame).unwrap_or_else(|| panic!("{text}\nlacks\n{frame}")));
        assert!(places.is_sorted(), "{text}");
    }
    for line in [
        // The variables that a block reads were written before its operator.
        "op0_0 -> op1_0 [label=\"i\\nfloat32 [1]\"]",
        "op0_0 -> op2_0 [label=\"i\\nfloat32 [1]\"]",
        "op1_0 -> op2_0 [label=\"y\\nfloat32 [1]\"]",
        "var0 -> op1_0\n",
        "op0_1 -> block1 [style=dashed, lhead=cluster_1]",
        "op1_1 -> block2 [style=dashed, lhead=cluster_2]",
    ] {
        assert!(dot.contains(line), "{dot}\nlacks\n{line}");
    }
    assert!(mermaid.contains("  op1_1 -.-> block2\n"), "{mermaid}");
    assert!(!dot.contains("block0") && !mermaid.contains("block0"));
}

#[test]
fn names_stay_inside_their_quotes() {
    let names = [
        ("a\"]; b", "a\\\"]; b", "a#34;]#59; b"),
        ("back\\slash\\", "back\\\\slash\\\\", "back#92;slash#92;"),
        ("<b>&amp;</b>", "&lt;b&gt;&amp;amp;&lt;/b&gt;", "#60;b#62;#38;amp#59;#60;/b#62;"),
        ("two\nlines\u{7}", "two\\nlines\u{fffd}", "two<br/>lines\u{fffd}"),
        ("#35;|`x`|", "#35;|`x`|", "#35;35#59;#124;#96;x#96;#124;"),
        ("größe@GRAD", "größe@GRAD", "größe@GRAD"),
        ("end", "end", "end"),
        ("\"", "\\\"", "#34;"),
    ];
    for (name, in_dot, in_mermaid) in names {
        let mut p = Program::new();
        let (x, y) = (p.var(name), p.var("y"));
        // As a node, in an arrow, as an operator's type.
        let op = |ty: &str| OpDesc::new(autobwd::program::Name::new(ty));
        p.root_mut().ops = vec![
            op(name).input("X", [x]).output("Out", [y]),
            op("f").input("X", [y]).output("Out", [x]),
            op("g").input("X", [x]),
        ];
        let (dot, mermaid) = (p.to_dot(), p.to_mermaid());
        for line in [
            format!("  var0 [label=\"{in_dot}\", "),
            format!("  op0_1 -> op0_2 [label=\"{in_dot}\"]\n"),
            format!("  op0_0 [label=\"0: {in_dot}\", "),
        ] {
            assert!(dot.contains(&line), "{dot}\nlacks\n{line}");
        }
        for line in [
            format!("  var0([\"{in_mermaid}\"]):::data\n"),
            format!("  op0_0[\"0: {in_mermaid}\"]:::forward\n"),
        ] {
            assert!(mermaid.contains(&line), "{mermaid}\nlacks\n{line}");
        }
        // Nothing else is drawn, and every quote is closed.
        assert_eq!(dot.lines().filter(|line| line.starts_with("  op0_")).count(), 5, "{dot}");
        for line in dot.lines() {
            let quotes = line.replace("\\\\", "").replace("\\\"", "").matches('"').count();
            assert_eq!(quotes % 2, 0, "{line}");
        }
    }
}
