use autobwd::Buf;

fn sum(x: &Buf<'_>) -> autobwd::Result<u16> {
    Ok(x.slice::<u16>()?.iter().sum())
}

fn main() {
    let _ = sum;
}
