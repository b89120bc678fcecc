public class Hello {
    public static void main(String[] args) {
        System.out.println("java " + Runtime.getRuntime().maxMemory() / (1 << 20) + " MiB");
    }
}
