//! Compiles a profile to the kernel's filter program (classic BPF, seccomp(2)).
//!
//! One program: it checks the architecture, finds the call's number by binary search, and tries the
//! call's rules from the most restrictive one. A call without rules costs almost nothing, because
//! the kernel caches such results. Must not know what calls mean.

use seccompiler::sock_filter;

use super::{Action, CallRules, Compare, Profile, Rule, Test};

/// Maximum instructions that the kernel accepts (BPF_MAXINSNS).
const MOST: usize = 4096;
/// Maximum tests of one rule; keeps every jump within its eight bits.
const MOST_TESTS: usize = 12;
/// The first number of x32 calls on x86_64; no architecture has numbers that high.
pub(super) const X32_FIRST: u32 = 0x4000_0000;

/// AUDIT_ARCH_X86_64, linux/audit.h.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCH: u32 = 0xc000_003e;
/// AUDIT_ARCH_AARCH64.
#[cfg(target_arch = "aarch64")]
pub(super) const ARCH: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the seccomp filter supports x86_64 and aarch64 only");

// linux/bpf_common.h
pub(super) const LOAD: u16 = 0x20;
pub(super) const AND: u16 = 0x54;
pub(super) const JUMP: u16 = 0x05;
pub(super) const IF_EQ: u16 = 0x15;
pub(super) const IF_GT: u16 = 0x25;
pub(super) const IF_GE: u16 = 0x35;
pub(super) const IF_ANY: u16 = 0x45;
pub(super) const RETURN: u16 = 0x06;

/// Offset of the call's number in `seccomp_data`.
pub(super) const NUMBER: u32 = 0;
/// Offset of the architecture.
pub(super) const ARCHITECTURE: u32 = 4;
/// Offset of the first argument, of eight bytes each.
const ARGUMENTS: u32 = 16;

/// Why a profile cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// The program has too many instructions: how many.
    #[error("it has {0} instructions, and the kernel accepts at most {MOST}")]
    Instructions(usize),
    /// A rule has too many tests.
    #[error("a rule has more than {MOST_TESTS} tests")]
    Tests,
    /// A jump over a rule exceeds its eight bits.
    #[error("a rule is too long")]
    RuleLength,
}

/// The program for a profile.
pub(super) fn assemble(profile: &Profile) -> Result<Vec<sock_filter>, FilterError> {
    let mut program = vec![
        step(LOAD, ARCHITECTURE),
        branch(IF_EQ, ARCH, 1, 0),
        step(RETURN, value(Action::Kill)),
        step(LOAD, NUMBER),
        branch(IF_GE, X32_FIRST, 0, 1),
        step(RETURN, value(profile.default)),
    ];
    program.extend(search(&leaves(profile)?));
    if program.len() > MOST {
        return Err(FilterError::Instructions(program.len()));
    }
    Ok(program)
}

/// The action for all numbers from this one to the next leaf's.
struct Leaf {
    from: u32,
    code: Vec<sock_filter>,
}

fn leaves(profile: &Profile) -> Result<Vec<Leaf>, FilterError> {
    let unknown = vec![step(RETURN, value(profile.default))];
    let mut leaves = vec![Leaf {
        from: 0,
        code: unknown.clone(),
    }];
    let mut put = |from: u32, code: Vec<sock_filter>| match leaves.last_mut() {
        Some(last) if last.from == from => last.code = code,
        Some(last) if last.code == code => {}
        _ => leaves.push(Leaf { from, code }),
    };
    for (number, call) in &profile.calls {
        put(*number, compile_call(call)?);
        put(number + 1, unknown.clone());
    }
    Ok(leaves)
}

/// Compiles the rules of one call, the most restrictive first.
fn compile_call(call: &CallRules) -> Result<Vec<sock_filter>, FilterError> {
    let mut rules: Vec<&Rule> = call.rules.iter().collect();
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.action));
    let mut code = Vec::new();
    for rule in rules {
        if rule.tests.len() > MOST_TESTS {
            return Err(FilterError::Tests);
        }
        let mut tail = vec![step(RETURN, value(rule.action))];
        for (argument, test) in rule.tests.iter().rev() {
            let skip = u8::try_from(tail.len()).map_err(|_| FilterError::RuleLength)?;
            let mut tested = compile_test(*argument, *test, skip);
            tested.append(&mut tail);
            tail = tested;
        }
        code.append(&mut tail);
        if rule.tests.is_empty() {
            return Ok(code);
        }
    }
    code.push(step(RETURN, value(call.otherwise)));
    Ok(code)
}

/// Continues with the next instruction if the test holds, otherwise skips `skip` further ones.
fn compile_test(argument: u8, test: Test, skip: u8) -> Vec<sock_filter> {
    // Both architectures are little-endian.
    let low = step(LOAD, ARGUMENTS + 8 * u32::from(argument));
    let high = step(LOAD, ARGUMENTS + 8 * u32::from(argument) + 4);
    match test {
        Test::AnyOf(bits) => vec![low, branch(IF_ANY, bits, 0, skip)],
        Test::Low32Masked(mask, wanted) => {
            vec![low, step(AND, mask), branch(IF_EQ, wanted, 0, skip)]
        }
        Test::Low32(compare, number) => vec![low, compare_loaded(compare, number, skip)],
        Test::Full64Masked(mask, wanted) => {
            let ((mask_high, mask_low), (wanted_high, wanted_low)) = (halves(mask), halves(wanted));
            vec![
                high,
                step(AND, mask_high),
                branch(IF_EQ, wanted_high, 0, skip + 3),
                low,
                step(AND, mask_low),
                branch(IF_EQ, wanted_low, 0, skip),
            ]
        }
        Test::Full64(compare, number) => {
            let (number_high, number_low) = halves(number);
            let by_low = compare_loaded(compare, number_low, skip);
            match compare {
                Compare::Eq => vec![high, branch(IF_EQ, number_high, 0, skip + 2), low, by_low],
                Compare::Ne => vec![high, branch(IF_EQ, number_high, 0, 2), low, by_low],
                Compare::Gt | Compare::Ge => vec![
                    high,
                    branch(IF_GT, number_high, 3, 0),
                    branch(IF_EQ, number_high, 0, skip + 2),
                    low,
                    by_low,
                ],
                Compare::Lt | Compare::Le => vec![
                    high,
                    branch(IF_GT, number_high, skip + 3, 0),
                    branch(IF_EQ, number_high, 0, 2),
                    low,
                    by_low,
                ],
            }
        }
    }
}

/// Compares the loaded value.
const fn compare_loaded(compare: Compare, number: u32, skip: u8) -> sock_filter {
    match compare {
        Compare::Eq => branch(IF_EQ, number, 0, skip),
        Compare::Ne => branch(IF_EQ, number, skip, 0),
        Compare::Gt => branch(IF_GT, number, 0, skip),
        Compare::Ge => branch(IF_GE, number, 0, skip),
        Compare::Lt => branch(IF_GE, number, skip, 0),
        Compare::Le => branch(IF_GT, number, skip, 0),
    }
}

/// Upper and lower half of a 64-bit number.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the halves are what is wanted"
)]
const fn halves(number: u64) -> (u32, u32) {
    ((number >> 32) as u32, number as u32)
}

/// Finds the leaf of the loaded number by binary search. `leaves` is never empty.
fn search(leaves: &[Leaf]) -> Vec<sock_filter> {
    let [first, rest @ ..] = leaves else {
        return Vec::new();
    };
    if rest.is_empty() {
        return first.code.clone();
    }
    let (below, above) = leaves.split_at(leaves.len() / 2);
    let Some(middle) = above.first() else {
        return Vec::new();
    };
    let (below, above) = (search(below), search(above));
    // The jump to the upper half may exceed the eight bits of a branch.
    let distance = u32::try_from(below.len()).unwrap_or(u32::MAX);
    let mut code = vec![branch(IF_GE, middle.from, 0, 1), step(JUMP, distance)];
    code.extend(below);
    code.extend(above);
    code
}

const fn step(code: u16, k: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

const fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// SECCOMP_RET_*, linux/seccomp.h.
pub(super) const fn value(action: Action) -> u32 {
    match action {
        Action::Allow => 0x7fff_0000,
        Action::Log => 0x7ffc_0000,
        Action::Errno(number) => 0x0005_0000 | number as u32,
        Action::Trap => 0x0003_0000,
        Action::KillThread => 0,
        Action::Kill => 0x8000_0000,
    }
}
